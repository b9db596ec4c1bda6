"""`flowcore state`: the state in the checkpoints of a flow's live queries."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from flowcore.cli.flow_argument import find_checkpoints, name_and_settings
from flowcore.escaping import printable
from flowcore.settings import Settings

__all__ = ["state"]


@click.command()
@name_and_settings
@click.option("--key", help="Show only this key: the values of its columns, separated by commas.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each key.")
def state(flow: str, settings: Settings, key: str | None, *, as_json: bool) -> None:
    """Show the state of a flow's live queries: windows and their buffers, timers, values by key.

    FLOW is the flow's name, or MODULE:FLOW. The command reads the checkpoints in state.dir, as of the last
    committed batch. The queries do not have to run.

    \b
    Examples:
      flowcore state sales
      flowcore state sales --key berlin
      flowcore state my_flows.sales:flow --json | jq 'select(.event_timers)'
    """
    found = 0
    for shown in _state_by_key(find_checkpoints(flow, settings), settings):
        if key is not None and _key_text(shown["key"]) != key:
            continue
        found += 1
        click.echo(json.dumps(shown) if as_json else _as_text(shown))
    if not as_json:
        click.echo(f"{found:,} keys")
    if key is not None and not found:
        raise SystemExit(1)


def _state_by_key(checkpoints: list[Path], settings: Settings) -> Iterator[dict[str, Any]]:
    checkpoints = [each for each in checkpoints if (each / "state").is_dir()]
    if not checkpoints:
        return
    from flowcore.spark.run.inspection import KeyGroupState, read_state  # noqa: PLC0415 - Spark is slow to import
    from flowcore.spark.run.session import live_session, session  # noqa: PLC0415

    with session(replace(settings, short_lived=True), "state") as spark:
        live = live_session(spark, settings)
        for checkpoint in checkpoints:
            for each in read_state(live, checkpoint):
                where: dict[str, Any] = {"query": checkpoint.name}
                if not isinstance(each, KeyGroupState):
                    yield {**where, "operator": each.operator, "key": each.key, "value": each.value}
                    continue
                group = each.held
                where |= {
                    "operator": group.operator,
                    "key_group": each.number,
                    "layout": group.layout,
                    "watermark_ms": group.watermark_ms,
                }
                if group.keys is None:
                    yield {**where, "key": {}, "bytes": group.bytes}
                for held in group.keys or ():
                    yield {**where, **held.shown()}


def _key_text(key: Mapping[str, Any]) -> str:
    return ",".join(str(value) for value in key.values())


def _as_text(shown: Mapping[str, Any]) -> str:
    place = ", ".join(shown[name] for name in ("query", "operator") if name in shown)
    lines = [f"{place}: {_key_text(shown['key']) or '(one key for all)'}"]
    for name in ("windows", "panes"):
        for window in shown.get(name, ()):
            rest = {k: v for k, v in window.items() if k not in ("start_ms", "end_ms")}
            lines.append(f"  {name[:-1]} [{window['start_ms']}, {window['end_ms']}) {json.dumps(rest)}")
    others = ("states", "event_timers", "processing_timers", "value", "bytes")
    lines += [f"  {name.replace('_', ' ')} {json.dumps(shown[name])}" for name in others if name in shown]
    return "\n".join(map(printable, lines))
