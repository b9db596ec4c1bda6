"""Reported progress of a run is shown in logs and in a terminal."""

import io
import itertools
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from flowcore.cli.top import _view
from flowcore.metrics.health import liveness_problem, markdown, tables
from flowcore.metrics.history import HistoryWriter, history_folder
from flowcore.metrics.progress import FlowProgress
from flowcore.metrics.reporting import LogListener, Reporter, describe_events
from tests.unit.metrics.commands import call
from tests.unit.metrics.full_progress import NOW_MS, SWITCH, query, run


class _Received:
    """A listener that keeps reports, and sets an event after a number of them."""

    def __init__(self, enough: int) -> None:
        self.seconds: list[float] = []
        self.has_enough = threading.Event()
        self._enough = enough

    def progressed(self, progress: FlowProgress) -> None:
        self.seconds.append(progress.seconds)
        if len(self.seconds) == self._enough:
            self.has_enough.set()


class _Broken:
    def progressed(self, progress: FlowProgress) -> None:
        raise OSError(progress.seconds)


def _polls(broken: int | None = None) -> Callable[[], FlowProgress]:
    numbers = itertools.count()

    def poll() -> FlowProgress:
        number = next(numbers)
        if number == broken:
            raise ValueError
        return run(seconds=float(number))

    return poll


def test_reporter_polls_at_the_start_and_at_the_end() -> None:
    """This holds for any interval."""
    received = _Received(enough=1)

    with Reporter(_polls(), [received], interval_s=3_600):
        assert received.has_enough.wait(10)

    assert received.seconds == [0, 1]


def test_reporter_continues_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    """A poll or another listener may fail. A listener whose disk is full does not fill the log."""
    received = _Received(enough=4)

    with Reporter(_polls(broken=1), [_Broken(), received], interval_s=0.001):
        assert received.has_enough.wait(10)

    assert received.seconds[:4] == [0, 2, 3, 4]
    assert [line.getMessage() for line in caplog.records] == [
        "_Broken did not receive the progress of the run",
        "the progress of the run cannot be read; the run continues",
        "the progress of the run can be read again",
    ]
    assert caplog.records[0].exc_info


def test_events_are_losses_and_switches() -> None:
    """Each event is reported once, when it happens."""
    before = run(switches=())
    after = run(queries=(query(late=9, dropped=6, dead_letters=6),))

    assert describe_events(before, before) == []
    assert describe_events(before, after) == [
        "query 'out' of flow 'sales': 2 records came too late and were dropped",
        "query 'out' of flow 'sales' went from slice to realtime: all native",
    ]
    assert describe_events(after, after) == []


def test_log_has_a_line_per_minute_and_events_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """The log has one more line at the end, and one when the clock was set back."""
    caplog.set_level(logging.INFO, "flowcore.metrics.reporting")
    listener = LogListener()

    for seconds in (0, 5, 60, 65, -3600, -3595):
        listener.progressed(run(time_ms=NOW_MS + seconds * 1000))
    listener.progressed(run(time_ms=NOW_MS - 3_594_000, state="ended", queries=(query(dropped=9),)))

    found = [(record.levelname, record.message.partition(":")[0]) for record in caplog.records]
    line = ("INFO", "sales/out realtime")
    at_first = [("WARNING", "query 'out' of flow 'sales'")] * 2
    assert found == [*at_first, line, line, line, ("WARNING", "query 'out' of flow 'sales'"), line]


@pytest.mark.parametrize(
    ("last", "ago_s", "expected"),
    [
        pytest.param(run(), 3, None, id="runs"),
        pytest.param(run(), 44, None, id="late"),
        pytest.param(
            run(), 46, r"not reported progress for 46 s, though it reports every 5 s: process \d+", id="hangs"
        ),
        pytest.param(run(state="ended"), 90, "does not run; it ended 1 min 30 s ago", id="ended"),
        pytest.param(
            run(state="failed", error="query 'out': no"), 1, "failed 1 s ago: query 'out': no", id="failed"
        ),
        pytest.param(run(host="elsewhere", pid=0), 3, None, id="runs elsewhere"),
    ],
)
def test_run_that_is_gone_has_a_liveness_problem(
    last: FlowProgress, ago_s: int, expected: str | None
) -> None:
    """The problem depends on the last report and its age."""
    found = liveness_problem(last, NOW_MS + ago_s * 1000)

    assert found is None if expected is None else re.search(expected, found or "")


def test_run_whose_process_is_gone_is_detected_at_once() -> None:
    """On the same machine, without waiting for an overdue report."""
    process = subprocess.Popen(["true"])
    process.wait()

    assert "is gone without a report" in (liveness_problem(run(pid=process.pid), NOW_MS + 1) or "")


def test_tables_show_everything_that_is_known() -> None:
    """A subject without values is omitted."""
    found = {table.title: table for table in tables(run())}
    nothing = tables(
        run(
            latencies=(), switches=(),
            queries=(query(bounded={}, partitions=(), operators=(), open_transactions=None),),
        )
    )  # fmt: skip

    assert found["queries"].rows == [("out", "realtime", "live", "450", "460", "100", "3 s ago")]
    assert found["late or lost"].rows == [("out", "5", "4", "6")]
    assert found["since the start"].rows == [("out", "900", "1,234", "3", "2 s", "7", "2.0 KiB")]
    assert found["transactions"].rows == [("out", "2", "2.5 s")]
    assert found["partitions"].rows == [("out", "bids[1]", "900", "1,000", "100", "3 s ago")]
    assert found["latency of the last minute"].rows[0][3:] == ("0.5 ms", "2.0 ms", "4.0 ms", "30.0 ms")
    assert found["operators, the busiest first"].rows == [
        ("out", "slow", "150%", "1 min 30 s"),
        ("out", "rated", "25%", "500 ms"),
    ]
    assert found["bounded results"].rows == [("usual", "20260101T000000-aa")]
    assert found["last switches"].rows[0][1:] == ("out", "slice to realtime", "all native", "-")
    assert [table.title for table in nothing] == ["queries", "late or lost", "since the start"]


def test_markdown_keeps_its_columns_for_any_text() -> None:
    """A bar in a reason does not start a column."""
    found = tables(run(switches=(replace(SWITCH, reason="a|b"),)))
    (table,) = (table for table in found if table.title == "last switches")

    assert markdown(table).splitlines()[-1].endswith("| `slice to realtime` | `a\\|b` | - |")


def test_top_once_shows_the_run_and_json_gives_it_to_scripts(state: Path) -> None:
    """Both exit with 0 while the run is active; the flow's name is enough."""
    shown = call("top", "sales", "--once", "--set", f"state.dir={state}")
    given = call("top", "pipelines.auctions.flow:flow", "--json", "--set", f"state.dir={state}")
    received = call("top", "sales", "--json", "--set", f"state.dir={state}")

    assert shown[0] == 0
    assert "running for" in shown[1]
    assert given[2].startswith("flow 'auctions' has no progress in state.dir=")
    assert "(known flows: sales)" in given[2]
    assert json.loads(received[1])["queries"][0]["lag"] == 100


def test_top_cuts_nothing_where_there_is_no_terminal(tmp_path: Path) -> None:
    """A pipe has no width, and no Ctrl-C."""
    long = "a_query_with_a_long_name_" * 5
    HistoryWriter(history_folder(tmp_path, "sales")).progressed(
        run(queries=(query(name=long, rows_in=123_456_789, rows_out=123_456_780),))
    )

    _, output, _ = call("top", "sales", "--once", "--set", f"state.dir={tmp_path}")

    assert all(text in output for text in (long, "123,456,789", "123,456,780"))
    assert "Ctrl-C" not in output
    assert not [line for line in output.splitlines() if "\N{HORIZONTAL ELLIPSIS}" in line]


def test_top_exits_with_1_when_the_flow_does_not_run(state: Path) -> None:
    """The last progress is shown nevertheless."""
    HistoryWriter(history_folder(state, "sales")).progressed(run(time_ms=NOW_MS, state="ended"))

    code, output, error = call("top", "sales", "--json", "--set", f"state.dir={state}")

    assert code == 1
    assert json.loads(output)["state"] == "ended"
    assert "does not run; it ended" in error


def test_top_shows_names_that_the_output_cannot_have(tmp_path: Path) -> None:
    """As escapes, where the output is a pipe in another encoding."""
    HistoryWriter(history_folder(tmp_path, "sales")).progressed(run(queries=(query(name="größe"),)))
    command = [sys.executable, "-m", "flowcore.cli.main", "top", "sales", "--once", "--set"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    found = subprocess.run(
        [*command, f"state.dir={tmp_path}"], env=environment, capture_output=True, check=False
    )

    assert b"gr\\xf6\\xdfe" in found.stdout, found.stderr


def test_top_without_a_terminal_names_the_option(state: Path) -> None:
    """It needs a terminal to draw in."""
    assert "pass --once or --json" in call("top", "sales", "--set", f"state.dir={state}")[2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminate"])
def test_top_exits_with_0_on_a_signal(state: Path, number: signal.Signals) -> None:
    """In a real terminal it draws, and exits without a traceback."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "flowcore.cli.main", "top", "sales", "--set", f"state.dir={state}"]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while b"since the start" not in shown:
            shown += os.read(ours, 1 << 16)
            assert len(shown) < 1 << 18, shown[-2_000:]
        process.send_signal(number)
        try:
            code = process.wait(60)
        finally:
            process.kill()
        with suppress(OSError):  # the terminal is closed
            shown += os.read(ours, 1 << 16)
    os.close(ours)

    assert (code, b"Traceback" in shown) == (0, False)


def test_table_without_counted_rows_of_state_has_no_column_for_them() -> None:
    """Spark does not count them unless it is asked to."""

    def header(progress: FlowProgress) -> tuple[str, ...]:
        return next(table.header for table in tables(progress) if table.title == "since the start")

    assert "rows of state" in header(run())
    assert "rows of state" not in header(run(queries=(query(state_rows=None),)))
    (row,) = next(table.rows for table in tables(run(queries=(query(state_rows=None),)))
                  if table.title == "since the start")  # fmt: skip
    assert len(row) == len(header(run(queries=(query(state_rows=None),))))


def test_partitions_show_what_is_not_committed() -> None:
    """A real-time batch has read it long before, so that it is not the query's lag."""
    (table,) = (table for table in tables(run()) if table.title == "partitions")

    assert table.header == ("query", "partition", "committed", "end", "uncommitted", "watermark")


def test_top_draws_every_table() -> None:
    """Names are not interpreted as markup."""
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(_view(run(queries=(query(name="[red]x"),))))
    text = console.export_text()

    assert "[red]x" in text
    assert all(table.title in text for table in tables(run()))


def test_latency_finds_the_topics_of_a_flow_by_its_name(tmp_path: Path) -> None:
    """The run has reported them. Here the broker is away, and the command names the one that it asked."""
    sinks = {"127.0.0.1:9": {"bargains": "sales/out"}}
    HistoryWriter(history_folder(tmp_path, "sales")).progressed(run(sinks=sinks))
    HistoryWriter(history_folder(tmp_path, "files")).progressed(run(flow="files"))
    where = ("--seconds", "0.1", "--set", f"state.dir={tmp_path}")

    assert "no broker has answered at 127.0.0.1:9" in call("latency", "sales", *where)[2]
    assert "flow 'files' writes no stream to Kafka" in call("latency", "files", *where)[2]
    assert "flow 'other' has no progress" in call("latency", "other", *where)[2]
