"""`flowcore top`: the progress of a flow's live run, read from its state folder by another process."""

import json
import signal
import time
from contextlib import suppress

import click
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flowcore.cli.console import make_console
from flowcore.cli.flow_argument import name_and_settings
from flowcore.durations import read_clock_ms
from flowcore.errors import RunError
from flowcore.escaping import printable
from flowcore.metrics import health
from flowcore.metrics.history import history_folder, known_flows, last_progress
from flowcore.metrics.progress import FlowProgress
from flowcore.settings import Settings

__all__ = ["load_progress", "top"]

_REFRESH_S = 1.0


@click.command()
@name_and_settings
@click.option(
    "--once", is_flag=True, help="Print the progress once; the exit code is 1 if the flow does not run."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object; the exit code is that of --once."
)
def top(flow: str, settings: Settings, *, once: bool, as_json: bool) -> None:
    """Show the progress of a flow's live run: rates, lag, watermarks, latency, late records, switches.

    FLOW is the flow's name, or MODULE:FLOW. It runs in another process, which writes its progress to
    state.dir every metrics.interval.

    \b
    Examples:
      flowcore top sales
      flowcore top my_flows.sales:flow --set state.dir=/var/lib/flows
      flowcore top sales --json | jq '.queries[].lag'
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    progress = load_progress(flow, settings)
    if not (once or as_json):
        _watch(flow, settings)
        return
    if as_json:
        click.echo(json.dumps(progress.stored()))
    else:
        make_console().print(_view(progress))
    if problem := health.liveness_problem(progress, read_clock_ms()):
        raise RunError(problem)


def load_progress(flow: str, settings: Settings) -> FlowProgress:
    """Read the last progress of a flow's live run.

    Raises:
        RunError: The flow has no progress.
    """
    progress = last_progress(history_folder(settings.state_dir, flow))
    if progress is None:
        known = ", ".join(known_flows(settings.state_dir)) or "none"
        msg = (
            f"flow {flow!r} has no progress in state.dir={settings.state_dir} (known flows: {known}): "
            "there is nothing to show; start it with `flowcore run` and metrics.interval above 0, or "
            "pass its folder, --set state.dir=..."
        )
        raise RunError(msg)
    return progress


def _watch(flow: str, settings: Settings) -> None:
    console = make_console()
    if not console.is_terminal:
        msg = "the output is not a terminal, so it cannot be updated; pass --once or --json"
        raise click.UsageError(msg)
    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(_view(load_progress(flow, settings), "; Ctrl-C ends this view"), refresh=True)
            time.sleep(_REFRESH_S)


def _view(progress: FlowProgress, hint: str = "") -> Group:
    problem = health.liveness_problem(progress, read_clock_ms())
    since = health.show_seconds(progress.seconds)
    state = Text(printable(problem), "bold red") if problem else Text(f"running for {since}", "green")
    where = Text(f"process {progress.pid} on {printable(progress.host)}{hint}", "dim")
    heading = Text.assemble((printable(progress.flow), "bold"), "  ", state)
    return Group(heading, where, *map(_rich_table, health.tables(progress)))


def _rich_table(table: health.TextTable) -> Table:
    found = Table(title=table.title, title_justify="left", box=SIMPLE_HEAD)
    for number, name in enumerate(table.header):
        found.add_column(name, justify="left" if number < table.names else "right")
    for row in table.rows:
        found.add_row(*(Text(printable(text)) for text in row))
    return found
