"""`flowcore replay`: does what runs here do what transcripts say?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from flowcore.errors import ConfigurationError, FlowcoreError
from flowcore.testing.transcripts import load, replay_transcript
from flowcore.testing.transcripts.kinds import KINDS
from flowcore.testing.transcripts.runner import TranscriptKind

__all__ = ["replay"]


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--engine",
    type=click.Choice(["memory", "spark"]),
    default="memory",
    show_default=True,
    help="Where they are run.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per transcript; the last line is the sum."
)
def replay(files: tuple[Path, ...], engine: str, as_json: bool) -> None:
    """Replay transcripts, and print each step that shows something else than it should.

    FILES are transcripts, or folders of them (every .yaml file in them). A transcript of a kind that
    cannot be run here is skipped. The last line
    counts; the exit code is 1 if any transcript failed.

    \b
    Examples:
      flowcore replay tests/contract/transcripts
      flowcore replay tests/contract/transcripts/session-*.yaml
      flowcore replay --json my-case.yaml
    """
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    with _engine(engine) as run, ThreadPoolExecutor(run.at_once) as threads:
        for outcome in threads.map(run.replayed, _transcripts(files)):
            counts[outcome["result"]] += 1
            if as_json:
                click.echo(json.dumps(outcome, default=str))
            elif outcome["result"] != "passed":
                click.echo(_told(outcome))
    if as_json:
        click.echo(json.dumps(counts))
    click.echo(", ".join(f"{n} {what}" for what, n in counts.items()), err=as_json)
    if counts["failed"]:
        raise SystemExit(1)


@dataclass(frozen=True, slots=True)
class _Engine:
    """What transcripts are run on, and how many run side by side."""

    kinds: Mapping[str, TranscriptKind]
    at_once: int = 1

    def replayed(self, path: Path) -> dict[str, Any]:
        """How one transcript went."""
        told: dict[str, Any] = {"file": str(path)}
        try:
            transcript = load(path)
            told |= {"name": transcript.name, "kind": transcript.kind}
            if transcript.kind not in self.kinds:
                return {
                    **told,
                    "result": "skipped",
                    "why": f"kind {transcript.kind!r} cannot be replayed here",
                }
            outcome = replay_transcript(transcript, self.kinds)
        except FlowcoreError as error:
            return {**told, "result": "failed", "why": str(error)}
        except Exception as error:  # noqa: BLE001 - one broken transcript must not hide the others
            return {**told, "result": "failed", "why": f"{type(error).__name__}: {error}"}
        if outcome.difference is None:
            return {**told, "result": "passed", "steps": outcome.steps}
        found = outcome.difference
        return {
            **told,
            "result": "failed",
            "step": found.step,
            "action": found.action,
            "what": found.name,
            "expected": found.expected,
            "seen": found.seen,
        }


@contextmanager
def _engine(name: str) -> Iterator[_Engine]:
    if name == "memory":
        yield _Engine(KINDS)
        return
    from flowcore.testing.transcripts.on_spark import (  # noqa: PLC0415 - Spark is slow to import
        AT_ONCE,
        kinds_on_spark,
    )

    with kinds_on_spark() as kinds:
        yield _Engine(kinds, AT_ONCE)


def _transcripts(files: tuple[Path, ...]) -> Iterator[Path]:
    for path in files:
        if not path.is_dir():
            yield path
            continue
        found = sorted(path.rglob("*.yaml"))
        if not found:
            msg = f"{path} holds no .yaml file: nothing would be replayed; name a folder of transcripts"
            raise ConfigurationError(msg)
        yield from found


def _told(outcome: Mapping[str, Any]) -> str:
    if "why" in outcome:
        return f"{outcome['file']}: {outcome['result']}: {outcome['why']}"
    where = f"step {outcome['step']} ({outcome['action']})" if outcome["step"] else "building the operator"
    return (
        f"{outcome['file']}: {where}: {outcome['what']}\n"
        f"  expected {_json(outcome['expected'])}\n"
        f"  seen     {_json(outcome['seen'])}"
    )


def _json(found: Any) -> str:
    return "nothing" if found in (None, []) else json.dumps(found, default=str)
