"""`flowcore state`: what do a flow's live queries keep, as their checkpoints have it?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from flowcore.cli.flow_argument import name_and_settings
from flowcore.errors import StateError
from flowcore.settings import Settings

__all__ = ["state"]


@click.command()
@name_and_settings
@click.option("--key", help="Only this key: its columns' values, with commas between them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a key.")
def state(flow: str, settings: Settings, key: str | None, *, as_json: bool) -> None:
    """Show the state of a flow's live queries: windows and what they buffer, timers, values by key.

    It is read from the checkpoints below state.dir, as of the last committed batch; no query has to run, and
    nothing of the flow is imported but its name. FLOW is the flow's name, or MODULE:FLOW.

    \b
    Examples:
      flowcore state sales
      flowcore state sales --key berlin
      flowcore state my_flows.sales:flow --json | jq 'select(.event_timers)'
    """
    found = 0
    for shown in _held(_checkpoints(flow, settings), settings):
        if key is not None and _text(shown["key"]) != key:
            continue
        found += 1
        click.echo(json.dumps(shown) if as_json else _told(shown))
    if not as_json:
        click.echo(f"{found:,} keys")
    if key is not None and not found:
        raise SystemExit(1)


def _checkpoints(flow: str, settings: Settings) -> list[Path]:
    folder = settings.state_dir.absolute() / flow / "checkpoints"
    found = sorted(path.parent for path in folder.glob("*/metadata"))
    if not found:
        msg = (
            f"flow {flow!r} has no checkpoint below {folder}: there is no state to show; run it first, or "
            "pass the folder that it runs with, --set state.dir=..."
        )
        raise StateError(msg)
    return found


def _held(checkpoints: list[Path], settings: Settings) -> Iterator[dict[str, Any]]:
    from flowcore.spark.run.inspection import KeyGroupState, read_state  # noqa: PLC0415 - Spark is slow to import
    from flowcore.spark.run.session import live_session, session  # noqa: PLC0415

    with session(settings, "state") as spark:
        live = live_session(spark, settings)
        for checkpoint in checkpoints:
            for each in read_state(live, checkpoint):
                where: dict[str, Any] = {"query": checkpoint.name}
                if not isinstance(each, KeyGroupState):
                    yield {**where, "operator": each.operator, "key": each.key, "value": each.value}
                    continue
                group = each.held
                where |= {"key_group": each.number, "form": group.layout, "watermark_ms": group.watermark_ms}
                if group.keys is None:
                    yield {**where, "key": {}, "bytes": group.bytes}
                for held in group.keys or ():
                    yield {**where, **held.shown()}


def _text(key: Mapping[str, Any]) -> str:
    return ",".join(str(value) for value in key.values())


def _told(shown: Mapping[str, Any]) -> str:
    where = f"{shown['query']}: {_text(shown['key']) or '(one key for all)'}"
    lines = [where]
    for name in ("windows", "panes"):
        for window in shown.get(name, ()):
            rest = {k: v for k, v in window.items() if k not in ("start_ms", "end_ms")}
            lines.append(f"  {name[:-1]} [{window['start_ms']}, {window['end_ms']}) {json.dumps(rest)}")
    others = ("states", "event_timers", "processing_timers", "value", "bytes")
    lines += [f"  {name.replace('_', ' ')} {json.dumps(shown[name])}" for name in others if name in shown]
    return "\n".join(lines)
