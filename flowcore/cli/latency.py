"""`flowcore latency`: the end-to-end latency of a flow that runs in another process."""

import dataclasses
import json
import signal
import time
from collections.abc import Iterable
from contextlib import ExitStack

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flowcore.api.connectors import KafkaTopic
from flowcore.api.flow import Flow
from flowcore.cli.console import make_console
from flowcore.cli.flow_argument import flow_or_name_and_settings
from flowcore.cli.top import load_progress
from flowcore.errors import PlanError, RunError
from flowcore.escaping import printable
from flowcore.kafka.latency_collector import LatencyCollector
from flowcore.latency import LatencySummary
from flowcore.settings import Settings
from flowcore.spark.context import broker_of

__all__ = ["latency"]

_REFRESH_S = 0.5
_LINES_S = 5.0
_PATIENCE_S = 10.0
_NO_MARKERS = (
    "no latency marker has reached a sink of flow {flow!r} at {servers} in {seconds:.0f} s: check that the "
    "flow runs, and that it has metrics.latency.interval, for instance --set metrics.latency.interval='1 s'"
)
_NO_BROKER = (
    "no broker has answered at {servers} in {seconds:.0f} s: latency markers of flow {flow!r} cannot be "
    "read; start the broker, for example with `flowcore broker --port N`, or pass the address of another"
)


@click.command()
@flow_or_name_and_settings
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Duration of the measurement. Default: until Ctrl-C.",
)
@click.option("--json", "as_json", is_flag=True, help="Print only one JSON object, at the end.")
def latency(flow: Flow | str, settings: Settings, seconds: float | None, *, as_json: bool) -> None:
    """Show the latency from the sources of a running flow to its sinks.

    FLOW is the flow's name, or MODULE:FLOW. It runs in another process, with metrics.latency.interval set.
    The command counts the latency markers that arrive while it runs; the live table shows the last minute.

    \b
    Examples:
      flowcore latency sales --set state.dir=/var/lib/flows
      flowcore latency my_flows.sales:flow --set kafka.bootstrap.servers=127.0.0.1:9092
      flowcore latency my_flows.sales:flow --seconds 60 --json
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    name = flow if isinstance(flow, str) else flow.name
    brokers = _sinks_by_broker(flow, settings)
    began_s = time.monotonic()
    interrupted = False
    with ExitStack() as opened:
        collectors = [opened.enter_context(LatencyCollector(*broker)) for broker in brokers.items()]
        view = _View(name, collectors)
        try:
            if as_json:
                view.wait(seconds)
            else:
                view.show(seconds)
        except KeyboardInterrupt:
            interrupted = True
    took_s = time.monotonic() - began_s
    if as_json:
        click.echo(json.dumps(view.as_object(took_s)))
    if not view.total():
        silent = [
            servers for servers, found in zip(brokers, collectors, strict=True) if not found.wait_ready(0)
        ]
        msg = (_NO_BROKER if silent else _NO_MARKERS).format(
            flow=name, seconds=took_s, servers=", ".join(silent or brokers)
        )
        if not interrupted:
            raise RunError(msg)
        click.echo(msg, err=True)


def _sinks_by_broker(flow: Flow | str, settings: Settings) -> dict[str, dict[str, str]]:
    """The sinks that receive markers, by broker and topic; of a flow's name, as its last run has reported."""
    found: dict[str, dict[str, str]] = {}
    if isinstance(flow, str):
        for servers, names in load_progress(flow, settings).sinks.items():
            for name, label in names.items():
                found.setdefault(broker_of(KafkaTopic(name, servers=servers), settings), {})[name] = label
    else:
        for sink in flow.sinks:
            topic = sink.topic
            if topic is not None and not sink.bounded:
                found.setdefault(broker_of(topic, settings), {})[topic.name] = f"{flow.name}/{sink.name}"
    if not found:
        name = flow if isinstance(flow, str) else flow.name
        msg = (
            f"flow {name!r} writes no stream to Kafka: only Kafka topics carry latency markers; write a "
            "live stream to a KafkaTopic"
        )
        raise PlanError(msg)
    return found


class _View:
    """Shows the collected latencies."""

    def __init__(self, flow: str, collectors: list[LatencyCollector]) -> None:
        self._flow = flow
        self._collectors = collectors
        self._began_s = time.monotonic()

    def total(self) -> list[LatencySummary]:
        return [summary for collector in self._collectors for summary in collector.read()]

    def as_object(self, seconds: float) -> dict[str, object]:
        return {
            "flow": self._flow,
            "seconds": round(seconds, 3),
            "latencies": [dataclasses.asdict(summary) for summary in self.total()],
            "bad_events": self._bad(),
        }

    def wait(self, seconds: float | None) -> None:
        end_s = None if seconds is None else self._began_s + seconds
        while _sleep(end_s, _LINES_S):
            pass

    def show(self, seconds: float | None) -> None:
        console = make_console()
        end_s = None if seconds is None else self._began_s + seconds
        try:
            if console.is_terminal:
                with Live(console=console, auto_refresh=False, transient=True) as live:
                    while _sleep(end_s, _REFRESH_S):
                        table = _table("last minute; Ctrl-C stops", self._recent())
                        live.update(Group(table, *self._notes()), refresh=True)
            while not console.is_terminal and _sleep(end_s, _LINES_S):
                for summary in self._recent():
                    click.echo(_line(summary))
                for note in self._notes():
                    click.echo(note.plain)
        finally:
            if self.total():
                console.print(_table("since the start", self.total()))
                for note in self._notes():
                    console.print(note)

    def _recent(self) -> list[LatencySummary]:
        return [summary for collector in self._collectors for summary in collector.recent()]

    def _bad(self) -> int:
        return sum(collector.bad for collector in self._collectors)

    def _notes(self) -> list[Text]:
        notes = []
        total = self.total()
        if not total and time.monotonic() - self._began_s > _PATIENCE_S:
            notes.append("no markers yet: check that the flow runs, and that it has metrics.latency.interval")
        if skewed := sum(summary.skewed for summary in total):
            notes.append(
                f"{skewed:,} markers were received before they were sent and are ignored: clocks differ"
            )
        if implausible := sum(summary.implausible for summary in total):
            notes.append(f"{implausible:,} markers are off by more than a day and are ignored")
        if bad := self._bad():
            last = next(collector.last_bad for collector in self._collectors if collector.last_bad)
            notes.append(f"{bad:,} messages are not events, the last: {last}")
        return [Text(printable(note)) for note in notes]


def _sleep(end_s: float | None, step_s: float) -> bool:
    """Sleep for a step, or for the rest of the time; False if the time is over."""
    left_s = step_s if end_s is None else min(end_s - time.monotonic(), step_s)
    time.sleep(max(left_s, 0))
    return end_s is None or time.monotonic() < end_s


def _table(title: str, summaries: Iterable[LatencySummary]) -> Table:
    table = Table("source", "sink", title=f"latency, {title}", title_justify="left")
    for name in ("markers", "p50 ms", "p90 ms", "p99 ms", "max ms"):
        table.add_column(name, justify="right")
    for summary in summaries:
        names = (Text(printable(name)) for name in (summary.source, summary.sink))
        table.add_row(*names, f"{summary.count:,}", *_figures(summary))
    return table


def _line(summary: LatencySummary) -> str:
    figures = ", ".join(
        f"{name} {figure} ms"
        for name, figure in zip(("p50", "p90", "p99", "max"), _figures(summary), strict=True)
    )
    edge = printable(f"{summary.source} -> {summary.sink}")
    return f"{edge}: {summary.count:,} markers in the last minute, {figures}"


def _figures(summary: LatencySummary) -> list[str]:
    found = (summary.p50_ms, summary.p90_ms, summary.p99_ms, summary.max_ms)
    return ["-" if figure is None else f"{figure:,.1f}" for figure in found]
