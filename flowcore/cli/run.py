"""`flowcore run`: a flow's bounded stages and live queries, without Dagster."""

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Literal

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flowcore.api.flow import Flow
from flowcore.api.operators import EventTimeSort, KeyedProcess, StreamJoin, Window
from flowcore.cli.console import make_console
from flowcore.cli.flow_argument import flow_and_settings
from flowcore.cli.signals import stopped_by_signals
from flowcore.cli.watermarks import show_time
from flowcore.escaping import printable
from flowcore.metrics.progress import QueryProgress
from flowcore.planner.model import Mode
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.results.manifest import Manifest
from flowcore.spark.run.bounded_stages import StageProgress, StageState
from flowcore.spark.run.flow import run_flow
from flowcore.spark.run.live_runs import LiveRuns
from flowcore.spark.run.query_meter import waiting_queries

__all__ = ["Terminal", "describe_open", "run"]

_REFRESH_S = 1.0
_BUSY = (StageState.WAITING, StageState.RUNNING, StageState.FINISHING)


@click.command()
@flow_and_settings
@click.option(
    "--mode",
    type=click.Choice(["auto", "realtime", "micro-batch", "slice"]),
    default="auto",
    help="Mode of the live queries. auto, the default: realtime if the plan allows it, but micro-batch while "
    "such a query catches up; otherwise micro-batch.",
)
@click.option(
    "--slice", "slice_", is_flag=True, help="Catch up with the topics, then end. The same as --mode slice."
)
@click.option(
    "--bounded", is_flag=True, help="Run only the bounded stages. Running live queries join the new results."
)
@click.option(
    "--skip-lost",
    is_flag=True,
    help="Continue where topics have records, after lost ones, and list these in "
    "state.dir/FLOW/skipped.jsonl. Without it such a start is refused.",
)
@click.option("--refresh", is_flag=True, help="Run all bounded stages, also those without any change.")
def run(
    flow: Flow,
    settings: Settings,
    mode: Mode | Literal["auto"],
    *,
    slice_: bool,
    bounded: bool,
    refresh: bool,
    skip_lost: bool,
) -> None:
    """Run a flow until it ends or Ctrl-C. If it is started again, it continues from its checkpoints.

    \b
    Examples:
      flowcore run my_flows.sales:flow --set kafka.bootstrap.servers=127.0.0.1:9092
      flowcore run my_flows.sales:flow --slice --set data.dir=/data --set state.dir=/var/lib/flows
      flowcore run my_flows.sales:flow --bounded
      flowcore run my_flows.sales:flow --set spark.master=spark://host:7077
    """
    if slice_ and mode not in ("auto", "slice"):
        msg = f"--slice and --mode {mode} exclude each other"
        raise click.UsageError(msg)
    with stopped_by_signals(), closing(Terminal(make_console(stderr=True))) as terminal:
        run_flow(
            flow,
            settings,
            mode="slice" if slice_ else None if mode == "auto" else mode,
            live=not bounded,
            refresh=refresh,
            skip_lost=skip_lost,
            listener=terminal,
        )


class _Waiting:
    """What a run waits for, with the seconds so far, which are counted whenever the terminal shows it."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._began = time.monotonic()

    def __rich__(self) -> Text:
        return _text(f"{self._line} ({time.monotonic() - self._began:,.0f} s)")


class Terminal:
    """Shows the progress of a run: on a line that changes in a terminal, a line for each change in a log."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("")
        self._states: dict[str, StageState] = {}
        self._plan: Plan | None = None
        self._waits_for = ""

    def planned(self, plan: Plan) -> None:
        self._plan = plan
        stages = ", ".join(stage.name for stage in plan.bounded)
        queries = ", ".join(f"{query.name} ({query.mode.value})" for query in plan.live_queries)
        self._say(f"flow {plan.flow}: " + "; then live: ".join(filter(None, [stages, queries])))
        self._wait("starting Spark")

    def stage_changed(self, progress: StageProgress) -> None:
        name = progress.stage.name
        self._states[name] = progress.state
        match progress.state:
            case StageState.FINISHING:
                self._say(f"stage {name}: finishing, its output is committed")
            case StageState.COMMITTED if progress.manifest is not None:
                self._committed(name, progress.manifest, fresh=progress.fresh)
            case StageState.FAILED:
                self._say(f"stage {name}: failed", "red")
        committed = {each for each, state in self._states.items() if state is StageState.COMMITTED}
        busy = [f"stage {each} {state}" for each, state in self._states.items() if state in _BUSY]
        queries = waiting_queries(self._plan, committed) if self._plan else ()
        waiting = [f"query {query.name} waiting" for query in queries]
        then = "starting the live queries" if self._plan and self._plan.live_queries else "ending"
        self._wait(", ".join([*busy, *waiting]) or then)

    def _committed(self, stage: str, manifest: Manifest, *, fresh: bool) -> None:
        rows = ", ".join(f"{name}: {table.rows:,} rows" for name, table in manifest.tables.items())
        how = (
            f"in {manifest.duration_ms / 1000:.1f} s" if fresh else f"up to date, version {manifest.version}"
        )
        self._say(f"stage {stage}: {rows or 'written'} ({how})")
        for source, count in manifest.rejected.items():
            if count:
                self._say(f"{count:,} bad records of {source} are in its dead-letter topic", "yellow")

    def live(self, run: LiveRuns) -> None:
        began = time.monotonic()
        if run.metrics_url:
            self._say(f"metrics for Prometheus: {run.metrics_url}")
        self._wait("starting the live queries")
        modes: object = None
        try:
            while not run.wait(_REFRESH_S):
                passed_s = time.monotonic() - began
                line = f"live for {passed_s:,.0f} s; {_summarize(run)}"
                self._status.update(_text(f"{line}; Ctrl-C stops"))
                if modes != (modes := [(query.mode, query.backlog) for query in run.progress()]):
                    self._log(line)
        finally:
            self._status.stop()
            self._console.print(_table(run))
            for line in describe_open(self._plan, run.progress()) if self._plan else ():
                self._say(line)

    def close(self) -> None:
        """Leave the terminal as it was: the line that changes hides the cursor."""
        self._status.stop()

    def _say(self, line: str, style: str = "") -> None:
        self._console.print(_text(line, style), soft_wrap=True)  # a line of a log stays one line

    def _wait(self, line: str) -> None:
        if line == self._waits_for:
            return
        self._waits_for = line
        self._log(line)
        self._status.update(_Waiting(line))
        self._status.start()

    def _log(self, line: str) -> None:
        if not self._console.is_terminal:
            self._say(line)


def _text(line: str, style: str = "") -> Text:
    """A line without control characters, of which rich reads no markup."""
    return Text(printable(line), style)


def describe_open(plan: Plan, progress: Iterable[QueryProgress]) -> Iterator[str]:
    """What slices leave open: windows, timers and records that wait for event time."""
    watermarks = {query.name: query.watermark_ms for query in progress}
    for query in plan.live_queries:
        kinds = (Window, KeyedProcess, StreamJoin, EventTimeSort)
        waiting = [node.name for node in query.operators if isinstance(node, kinds)]
        if query.mode.value != "slice" or not waiting or query.name not in watermarks:
            continue
        at_ms = watermarks[query.name]
        reached = "has not begun" if at_ms is None else f"is at {show_time(at_ms)}"
        yield (
            f"query {query.name}: event time {reached}. What {' and '.join(waiting)} would emit later "
            "(windows, timers, records without partner or place) stays open for the next run; "
            f"`flowcore state {plan.flow}` shows it"
        )


def _summarize(run: LiveRuns) -> str:
    queries = [
        f"{query.name} ({query.mode}{', catching up' if query.backlog else ''}): {query.rows_in:,} in, "
        f"{query.rows_out:,} out{f', {query.lag:,} unread' if query.lag else ''}"
        for query in run.progress()
    ]
    slowest = max((one.p99_ms for one in run.latency() if one.p99_ms is not None), default=None)
    return ", ".join([*queries, *([f"p99 {slowest:.1f} ms"] if slowest is not None else [])])


def _table(run: LiveRuns) -> Table:
    table = Table("query", "mode", "batches", "records in", "records out", "dead letters")
    for query in run.progress():
        counts = query.batches, query.rows_in, query.rows_out, query.dead_letters
        table.add_row(_text(query.name), _text(query.mode), *(f"{count:,}" for count in counts))
    return table
