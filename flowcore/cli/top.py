"""`flowcore top`: how a flow's live run is doing, from any other process that sees its state folder."""

from __future__ import annotations

import json
import signal
import time
from contextlib import suppress

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flowcore.cli.flow_argument import name_and_settings
from flowcore.errors import RunError
from flowcore.metrics import health
from flowcore.metrics.health import liveness_problem
from flowcore.metrics.history import history_folder, known_flows, last_progress
from flowcore.metrics.progress import FlowProgress
from flowcore.settings import Settings

__all__ = ["last_look", "top"]

_REFRESH_S = 1.0


@click.command()
@name_and_settings
@click.option("--once", is_flag=True, help="Print it once and end: with 1 if the flow does not run.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and end, in the same way.")
def top(flow: str, settings: Settings, *, once: bool, as_json: bool) -> None:
    """Show how the live run of a flow is doing: rates, lag, watermarks, latency, late records, switches.

    The flow runs in another process, or did; FLOW is its name, or MODULE:FLOW. What is shown is what the
    run wrote below state.dir at its last look at itself (metrics.interval).

    \b
    Examples:
      flowcore top sales
      flowcore top my_flows.sales:flow --set state.dir=/var/lib/flows
      flowcore top sales --json | jq '.queries[].lag'
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    progress = last_look(flow, settings)
    if not (once or as_json):
        _watch(flow, settings)
        return
    if as_json:
        click.echo(json.dumps(progress.stored()))
    else:
        Console().print(_view(progress))
    if wrong := liveness_problem(progress, _now_ms()):
        raise RunError(wrong)


def last_look(flow: str, settings: Settings) -> FlowProgress:
    """The last look at a flow's live run.

    Raises:
        RunError: There is none.
    """
    progress = last_progress(history_folder(settings.state_dir, flow))
    if progress is None:
        known = ", ".join(known_flows(settings.state_dir)) or "none"
        msg = (
            f"flow {flow!r} has left no progress in state.dir={settings.state_dir} (those that have: "
            f"{known}): there is nothing to show; start it with `flowcore run` and metrics.interval above 0, "
            "or pass the folder that it runs with, --set state.dir=..."
        )
        raise RunError(msg)
    return progress


def _watch(flow: str, settings: Settings) -> None:
    console = Console()
    if not console.is_terminal:
        msg = "the output is no terminal that could be drawn on again and again; pass --once or --json"
        raise click.UsageError(msg)
    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(_view(last_look(flow, settings)), refresh=True)
            time.sleep(_REFRESH_S)


def _view(progress: FlowProgress) -> Group:
    wrong = liveness_problem(progress, _now_ms())
    since = health.show_seconds(progress.seconds)
    state = Text(wrong, "bold red") if wrong else Text(f"running for {since}", "green")
    where = Text(f"process {progress.pid} on {progress.host}; Ctrl-C ends this view", "dim")
    heading = Text.assemble((progress.flow, "bold"), "  ", state)
    return Group(heading, where, *map(_drawn, health.tables(progress)))


def _drawn(table: health.TextTable) -> Table:
    drawn = Table(title=table.title, title_justify="left", box=SIMPLE_HEAD)
    for number, name in enumerate(table.header):
        drawn.add_column(name, justify="left" if number < table.names else "right")
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    return drawn


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
