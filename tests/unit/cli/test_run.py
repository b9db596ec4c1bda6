"""`flowcore run` says what it does, in a terminal and in a log, and what a slice leaves open."""

from __future__ import annotations

import contextlib
import io
import re
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import cast

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from flowcore import Csv, Flow, KafkaTopic, Stream, Tumbling, monotonous
from flowcore.cli.broker import broker
from flowcore.cli.run import Terminal, describe_open, run
from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.errors import RunError
from flowcore.metrics.progress import QueryProgress
from flowcore.planner import plan_flow
from flowcore.spark.run.bounded_stages import StageProgress, StageState
from flowcore.spark.run.live_runs import LiveRuns
from tests.idle_functions import IdleProcess
from tests.waiting import wait_until


def _clicks(flow: Flow) -> Stream:
    return flow.read("clicks", KafkaTopic("clicks", "user STRING, n INT", watermark=monotonous()))


def _progress(watermark_ms: int | None) -> list[QueryProgress]:
    return [QueryProgress(name="clicks-batches", mode="slice", active=False, watermark_ms=watermark_ms)]


def test_slice_names_the_operators_that_wait_for_event_time() -> None:
    """What they keep comes with a later run."""
    flow = Flow("site")
    clicks = _clicks(flow)
    clicks.window(Tumbling(10), by="user", name="sums").aggregate(n="sum(n)").write("out", KafkaTopic("sums"))
    silent = clicks.process(IdleProcess(), by="user", schema="user STRING", name="silent")
    silent.write("silence", KafkaTopic("silent"))
    clicks.sort_by_event_time(name="sorted").write("in-order", KafkaTopic("in-order"))
    plan = plan_flow(flow, "slice")

    (reached,) = describe_open(plan, _progress(1_700_000_098_899))
    (unknown,) = describe_open(plan, _progress(None))
    (ended,) = describe_open(plan, _progress(MAX_TIMESTAMP_MS))

    assert reached.startswith(
        "query clicks-batches: event time is at 2023-11-14 22:14:58.899Z. What sums and silent and sorted"
    )
    assert "`flowcore state site` shows it" in reached
    assert "event time has not begun" in unknown
    assert "event time is at the end of time. What" in ended


def test_only_slices_with_such_operators_leave_something_open() -> None:
    """A live run goes on, and a deduplication has emitted what it lets through."""
    open_, closed = Flow("open"), Flow("closed")
    _clicks(open_).window(Tumbling(10)).aggregate(n="sum(n)").write("out", KafkaTopic("sums"))
    _clicks(closed).deduplicate(by="user", within=timedelta(hours=1)).write("out", KafkaTopic("users"))

    assert [*describe_open(plan_flow(open_, "micro-batch"), _progress(1))] == []
    assert [*describe_open(plan_flow(closed, "slice"), _progress(1))] == []


def _after_sigterm() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    raise ConnectionError


def _after_interrupt() -> None:
    try:
        raise KeyboardInterrupt
    finally:
        raise ConnectionError


def _of_interrupt() -> None:  # as Python makes it if a signal arrives in C code
    raise SystemError from KeyboardInterrupt()


def _alone() -> None:
    raise ConnectionError


@pytest.mark.parametrize(
    ("fail", "expected"),
    [(_after_sigterm, click.Abort), (_after_interrupt, click.Abort), (_of_interrupt, click.Abort),
     (_alone, ConnectionError)],
)  # fmt: skip
def test_what_fails_after_a_signal_is_not_an_error_of_the_run(
    fail: Callable[[], None], expected: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JVM gets the signal too, and answers calls with errors while it ends."""
    (tmp_path / "stopped.py").write_text("from flowcore import Flow\nflow = Flow('stopped')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)

    def run_flow(*_: object, **__: object) -> None:
        fail()

    monkeypatch.setattr("flowcore.cli.run.run_flow", run_flow)
    try:
        found = CliRunner().invoke(run, ["stopped:flow"], standalone_mode=False)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert type(found.exception) is expected


class _Queries:
    """Live queries that report one progress after the other, then end."""

    metrics_url = None

    def __init__(self, reports: list[QueryProgress]) -> None:
        self._reports = reports
        self._shown = -1

    def wait(self, _seconds: float) -> bool:
        self._shown += 1
        return self._shown == len(self._reports)

    def progress(self) -> Iterator[QueryProgress]:
        yield self._reports[min(self._shown, len(self._reports) - 1)]

    def latency(self) -> tuple[()]:
        return ()


def _shown(*, is_terminal: bool) -> str:
    """What a run of a table and a topic shows that catches up in two batches, then goes live."""
    flow = Flow("site")
    usual = flow.read("users", Csv("users.csv", "user STRING")).aggregate(
        by="user", n="count(*)", name="known"
    )
    _clicks(flow).join(usual, on="user", how="semi").write("out", KafkaTopic("out"))
    plan = plan_flow(flow)
    output = io.StringIO()
    shown = Terminal(Console(file=output, force_terminal=is_terminal, width=80, color_system=None))

    def report(rows_in: int, mode: str, lag: int | None) -> QueryProgress:
        return QueryProgress(name="clicks", mode=mode, active=True, backlog=lag is not None, rows_in=rows_in,
                             rows_out=rows_in // 2, lag=lag)  # fmt: skip

    shown.planned(plan)
    if is_terminal:
        wait_until(lambda: re.search(r"starting Spark \(\d+ s\)", output.getvalue()), "it is shown")
    for state in (StageState.WAITING, StageState.RUNNING, StageState.RUNNING):
        shown.stage_changed(StageProgress(plan.bounded[0], state))
    reports = [report(0, "micro-batch", 90), report(60, "micro-batch", 30), report(90, "realtime", None)]
    shown.live(cast("LiveRuns", _Queries(reports)))
    return output.getvalue()


def test_broker_refuses_a_topic_before_it_starts() -> None:
    """The name is that of no topic, and Kafka takes seconds to start."""
    found = CliRunner().invoke(broker, ["--topic", "a b"])

    assert found.exit_code == 2
    assert "KafkaTopic name='a b' cannot name a topic" in found.stderr


def test_run_that_fails_shows_the_cursor_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that changes hides it; a start that fails never reaches the live queries."""
    (tmp_path / "failed.py").write_text("from flowcore import Flow\nflow = Flow('failed')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    output = io.StringIO()
    monkeypatch.setattr(
        "flowcore.cli.run.make_console", lambda **_: Console(file=output, force_terminal=True)
    )

    def run_flow(flow: Flow, *_: object, listener: Terminal, **__: object) -> None:
        flow.read("users", Csv("users.csv", "user STRING")).write("out", Csv("out"))
        listener.planned(plan_flow(flow))
        msg = "no start"
        raise RunError(msg)

    monkeypatch.setattr("flowcore.cli.run.run_flow", run_flow)
    before = signal.getsignal(signal.SIGTERM)
    try:
        CliRunner().invoke(run, ["failed:flow"], standalone_mode=False)
    finally:
        signal.signal(signal.SIGTERM, before)

    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    assert 0 <= output.getvalue().find(hidden) < output.getvalue().rfind(shown)


def test_log_of_bounded_stages_only_has_no_live_queries() -> None:
    """After the last stage, Spark ends."""
    flow = Flow("users")
    flow.read("users", Csv("users.csv", "user STRING")).write("out", Csv("out"))
    plan, output = plan_flow(flow), io.StringIO()
    shown = Terminal(Console(file=output))
    shown.planned(plan)
    for state in (StageState.RUNNING, StageState.COMMITTED):
        shown.stage_changed(StageProgress(plan.bounded[0], state))
    shown.close()

    assert output.getvalue().splitlines()[2:] == ["stage out running", "ending"]


def test_log_has_a_line_for_each_change_of_a_run() -> None:
    """Without a terminal, as under systemd or nohup, progress is not shown on a line that changes."""
    lines = re.sub(r"for \d+ s", "for N s", _shown(is_terminal=False)).splitlines()

    assert lines[:7] == [
        "flow site: known; then live: clicks (realtime)",
        "starting Spark",
        "stage known waiting, query clicks waiting",
        "stage known running, query clicks waiting",
        "starting the live queries",
        "live for N s; clicks (micro-batch, catching up): 0 in, 0 out, 90 unread",
        "live for N s; clicks (realtime): 90 in, 45 out",
    ]
    assert "unread" not in "".join(lines[7:])


def test_terminal_shows_how_long_a_run_waits() -> None:
    """A line that changes shows it, so that the lines of a log are not printed too."""
    shown = _shown(is_terminal=True)

    assert "starting Spark\n" not in shown
    assert "90 in, 45 out; Ctrl-C stops" in shown
