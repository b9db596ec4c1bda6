"""`flowcore replay`: replay transcripts and compare the outputs with the expected ones."""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from flowcore.errors import ConfigurationError, FlowcoreError
from flowcore.escaping import printable_lines
from flowcore.testing.transcripts import load, replay_transcript
from flowcore.testing.transcripts.kinds import KINDS, NOT_LIVE
from flowcore.testing.transcripts.runner import TranscriptKind

__all__ = ["replay"]


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--engine",
    type=click.Choice(["memory", "spark"]),
    default="memory",
    show_default=True,
    help="Where the transcripts run.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object for each transcript, and the totals in the last line.",
)
def replay(files: tuple[Path, ...], engine: str, as_json: bool) -> None:
    """Replay transcripts, and print each step with an unexpected output.

    FILES are transcripts, or folders with .yaml files. The engine "spark" runs each of them as a live flow.
    A transcript that cannot be replayed is skipped, with the reason. The last line shows the totals. The exit
    code is 1 if any transcript failed.

    \b
    Examples:
      flowcore replay tests/contract/transcripts
      flowcore replay tests/contract/transcripts/session-*.yaml
      flowcore replay --json my-case.yaml
    """
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    with _engine(engine) as (kinds, at_once), ThreadPoolExecutor(at_once) as threads:
        for outcome in threads.map(lambda path: _replay(path, kinds), _transcripts(files)):
            counts[outcome["result"]] += 1
            if as_json:
                click.echo(json.dumps(outcome, default=str))
            elif outcome["result"] != "passed":
                click.echo(printable_lines(_describe(outcome)))
    if as_json:
        click.echo(json.dumps(counts))
    click.echo(", ".join(f"{n} {what}" for what, n in counts.items()), err=as_json)
    if counts["failed"]:
        raise SystemExit(1)


def _replay(path: Path, kinds: Mapping[str, TranscriptKind]) -> dict[str, Any]:
    """Replay one transcript and return the outcome."""
    found: dict[str, Any] = {"file": str(path)}
    try:
        transcript = load(path)
        found |= {"name": transcript.name, "kind": transcript.kind}
        if transcript.kind not in kinds:
            why = NOT_LIVE.get(transcript.kind, f"kind {transcript.kind!r} is not in the README")
            return {**found, "result": "skipped", "why": why}
        outcome = replay_transcript(transcript, kinds)
    except FlowcoreError as error:
        return {**found, "result": "failed", "why": str(error)}
    except Exception as error:  # noqa: BLE001 - one broken transcript must not hide the others
        return {**found, "result": "failed", "why": f"{type(error).__name__}: {error}"}
    if (difference := outcome.difference) is None:
        return {**found, "result": "passed", "steps": outcome.steps}
    return {
        **found,
        "result": "failed",
        "step": difference.step,
        "action": difference.action,
        "what": difference.name,
        "expected": difference.expected,
        "seen": difference.seen,
    }


@contextmanager
def _engine(name: str) -> Iterator[tuple[Mapping[str, TranscriptKind], int]]:
    if name == "memory":
        yield KINDS, 1
        return
    from flowcore.testing.transcripts.on_spark import AT_ONCE, kinds_on_spark  # noqa: PLC0415 - Spark is slow to import

    with kinds_on_spark() as kinds:
        yield kinds, AT_ONCE


def _transcripts(files: tuple[Path, ...]) -> Iterator[Path]:
    for path in files:
        if not path.is_dir():
            yield path
            continue
        found = sorted(path.rglob("*.yaml"))
        if not found:
            msg = f"{path} holds no .yaml file: nothing would be replayed; pass a folder of transcripts"
            raise ConfigurationError(msg)
        yield from found


def _describe(outcome: Mapping[str, Any]) -> str:
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
