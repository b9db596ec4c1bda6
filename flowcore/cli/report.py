"""`flowcore report`: the history of a flow's live runs as one page of plots."""

import time
from datetime import timedelta
from pathlib import Path

import click

from flowcore.cli.flow_argument import name_and_settings
from flowcore.cli.top import load_progress
from flowcore.durations import parse_duration, read_clock_ms
from flowcore.errors import RunError
from flowcore.metrics.history import history_folder, read_history
from flowcore.metrics.report import report_page
from flowcore.settings import Settings

__all__ = ["report"]


def _duration(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        msg = f"{text!r}: {error}"
        raise click.BadParameter(msg) from error


@click.command()
@name_and_settings
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The file to write.",
)
@click.option(
    "--since",
    type=_duration,
    metavar="DURATION",
    help="Show only this last period, for instance '2 d'. Default: the whole history.",
)
def report(flow: str, settings: Settings, page: Path, since: timedelta | None) -> None:
    """Write the history of a flow's live runs as one self-contained HTML page.

    FLOW is the flow's name, or MODULE:FLOW. The page shows the last hours in detail, and months in outline.

    \b
    Examples:
      flowcore report sales --html sales.html
      flowcore report my_flows.sales:flow --html week.html --since '7 d' --set state.dir=/var/lib/flows
    """
    last = load_progress(flow, settings)
    since_ms = None if since is None else int((time.time() - since.total_seconds()) * 1000)
    history = read_history(history_folder(settings.state_dir, flow), since_ms)
    if not history:
        then = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(last.time_ms / 1000))
        msg = (
            f"flow {flow!r} has not run in the last {since}: the page would be empty; its last run reported "
            f"at {then} UTC; pass a longer --since"
        )
        raise RunError(msg)
    try:
        page.write_text(report_page(history, read_clock_ms()), encoding="utf-8")
    except OSError as error:
        msg = f"--html {page} cannot be written: {error.strerror}; pass a file in an existing folder"
        raise RunError(msg) from error
    click.echo(f"{page}: {len(history):,} progress reports of flow {flow}")
