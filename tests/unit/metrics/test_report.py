"""The progress of a run on a page that a browser shows."""

import os
import re
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from flowcore.metrics.health import liveness_problem, show_count
from flowcore.metrics.progress import FlowProgress
from flowcore.metrics.report import Line, line_chart, report_page
from tests.unit.metrics.commands import call
from tests.unit.metrics.full_progress import NOW_MS, run


class _Outside(HTMLParser):
    """Finds the resources that a page would load, and tags that are not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "path", "line"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "line"):
            assert self.open.pop() == tag


def test_report_is_one_page_that_loads_nothing(state: Path, tmp_path: Path) -> None:
    """It has a plot of every known value, the runs and the last switches."""
    file = tmp_path / "page.html"
    code, output, _ = call("report", "sales", "--html", str(file), "--set", f"state.dir={state}")
    page = file.read_text()
    parser = _Outside()
    parser.feed(page)

    assert (code, output) == (0, f"{file}: 7 progress reports of flow sales\n")
    assert (parser.open, parser.loaded) == ([], [])
    assert "http" not in page.replace("https://", "http://").replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert page.count("<svg") == 25
    assert page.count("all native") == 1


def test_report_of_the_last_part_leaves_out_the_rest(state: Path, tmp_path: Path) -> None:
    """If nothing is left, the report states it."""
    arguments = ("report", "sales", "--html", str(tmp_path / "page.html"), "--set", f"state.dir={state}")

    assert "5 progress reports" in call(*arguments, "--since", "1 h")[1]
    assert "has not run in the last 0:00:00.001" in call(*arguments, "--since", "1 ms")[2]
    assert "a duration is a number" in call(*arguments, "--since", "soon")[2]


def test_report_that_cannot_be_written_names_the_option(state: Path, tmp_path: Path) -> None:
    """The folder does not exist."""
    missing = tmp_path / "missing" / "page.html"

    assert "No such file" in call("report", "sales", "--html", str(missing), "--set", f"state.dir={state}")[2]


def test_report_shows_a_killed_run_as_killed() -> None:
    """A run that has not reported its end was killed if its process is gone, or the next run says so."""
    process = subprocess.Popen(["true"])
    process.wait()
    began = {"killed": 300, "ended": 200, "newest": 1}
    runs = {
        name: run(time_ms=NOW_MS - seconds_ago * 1_000, seconds=60.0, pid=process.pid)
        for name, seconds_ago in began.items()
    }
    runs["killed"] = replace(runs["killed"], state="killed")
    runs["ended"] = replace(runs["ended"], state="ended")

    def states(newest: FlowProgress) -> list[str]:
        page = report_page([runs["killed"], runs["ended"], newest], NOW_MS)
        (table,) = re.findall(r"<h2>Runs</h2>(<table>.*?</table>)", page, re.DOTALL)
        return re.findall(r"</td><td class=name>(running|killed|ended)</td>", table)

    assert "was killed" in (liveness_problem(runs["killed"], NOW_MS) or "")
    assert states(runs["newest"]) == ["killed", "ended", "killed"]
    assert states(replace(runs["newest"], pid=os.getpid())) == ["running", "ended", "killed"]


def test_report_escapes_names() -> None:
    """Names of flows and errors may contain any characters."""
    page = report_page([run(flow="<b>", state="failed", error="<script>")], NOW_MS)

    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_chart_breaks_a_line_where_nothing_ran_and_keeps_peaks() -> None:
    """A plot of a hundred thousand points has at most one per pixel, including the highest."""
    points: list[tuple[int, float | None]] = [(time_ms, 1.0) for time_ms in range(100_000)]
    points[50_003] = (50_003, 100.0)
    points[70_000] = (70_000, None)

    chart = line_chart("t", [Line("a", points), Line("none", [(0, None)])], (0, 100_000), show_count)

    assert chart.count("M") == 2
    assert chart.count("L") < 2_000
    assert "L516 8.0" in chart or re.search(r"L51\d(\.\d)? 8\.0", chart)
    assert "highest 100" in chart
    assert "none" not in chart


def test_chart_without_points_is_empty() -> None:
    """There is no empty frame."""
    assert line_chart("t", [Line("a", [(0, None)])], (0, 1), show_count) == ""
