"""The list of all benchmarks, and the table of their results."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from flowcore.errors import ConfigurationError
from pipelines.benchmark import Figures
from tests.benchmarks._suite import SUITE, Entry, Size

FOLDER = Path(__file__).parents[1] / "benchmarks"
SIZES: tuple[Size, ...] = ("full", "quick", "smallest")


@pytest.fixture(scope="module")
def report() -> Any:
    """The module of `flowcore bench report`, as the command loads it."""
    spec = importlib.util.spec_from_file_location("benchmark_report", FOLDER / "report.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_benchmark_is_in_the_suite() -> None:
    """A benchmark that nothing runs breaks unnoticed."""
    benchmarks = {
        path.stem.replace("_", "-") for path in FOLDER.glob("*.py") if not path.stem.startswith("_")
    }

    assert {entry.benchmark for entry in SUITE} == benchmarks - {"all", "report"}
    assert len({entry.name for entry in SUITE}) == len(SUITE)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("entry", SUITE, ids=lambda entry: entry.name)
def test_options_exist(entry: Entry, size: Size) -> None:
    """Each option of a size is one of its benchmark."""
    text = (FOLDER / f"{entry.benchmark.replace('-', '_')}.py").read_text()

    for word in entry.options(size):
        assert not word.startswith("--") or f'"{word}"' in text


@pytest.mark.parametrize("entry", SUITE, ids=lambda entry: entry.name)
def test_full_figures_are_of_three_rounds_or_more(entry: Entry) -> None:
    """One round does not show how much a figure varies."""
    text = (FOLDER / f"{entry.benchmark.replace('-', '_')}.py").read_text()
    options = entry.options("full")

    for option in ("--rounds", "--minutes"):
        default = re.search(rf'"{option}", default=(\d+), show_default=True, help="Counted', text)
        if default:
            chosen = options[options.index(option) + 1] if option in options else default[1]
            assert int(chosen) >= 3, f"{option} {chosen}"


def test_full_size_has_all_cases_of_windows() -> None:
    """`ratio_to_native` is the worst of all cases."""
    (windows,) = [entry for entry in SUITE if entry.name == "windows"]

    assert "--case" in windows.options("quick")
    assert "--case" not in windows.options("full")


def test_quick_size_has_every_benchmark_and_leaves_out_further_cases() -> None:
    """A further case begins another session, which takes longer than its records."""
    whole = {entry.benchmark for entry in SUITE}

    assert {entry.benchmark for entry in SUITE if entry.is_in("quick")} == whole
    assert all(entry.is_in(size) for entry in SUITE for size in ("full", "smallest"))


def _result(name: str = "join", size: str = "full", **about: Any) -> dict[str, Any]:
    figures = {
        "flowcore": Figures(
            "flowcore",
            "records/s",
            [1_000.0, 2_000.0, 2_500.0],
            by_slope=3_000.0,
            cpu_s=[4, 5, 9],
            peak_mb=[1, 2, 3],
        ).members
    }
    report = {"commit": "abc", "machine": "two cores", "figures": figures, "ratios": ["ratio"], "ratio": 0.5}
    return {
        "name": name,
        "size": size,
        "command": f"flowcore bench {name}",
        "seconds": 9,
        "report": report | about,
    }


def test_table_has_median_and_range_of_every_figure(report: Any) -> None:
    """Each row says how many rounds it is of, and what they cost."""
    table = report.make_table([_result()])

    assert "Commit abc, two cores; size: full." in table
    assert "| join | flowcore | 2,000 records/s | 1,000 to 2,500 | 3 | 3,000 | 5.00 s | 2.00 MB |" in table
    assert "| join | `ratio` | 0.500 | | | | | |" in table


def test_table_has_the_notes(report: Any) -> None:
    """A rival that takes no part is not just missing; its error may have many lines."""
    table = report.make_table([_result(notes=["join quix takes no part: no wheel\n a | b" + " x" * 500])])

    (row,) = (line for line in table.splitlines() if "takes no part" in line)
    assert row.startswith("| join | join quix takes no part: no wheel a / b x")
    assert len(row) < 250


@pytest.mark.parametrize(
    "other",
    [_result("flush", commit="def"), _result("flush", machine="four cores"), _result("flush", "quick")],
    ids=["commit", "machine", "size"],
)
def test_table_is_of_one_commit_one_machine_and_one_size(report: Any, other: dict[str, Any]) -> None:
    """Figures that cannot be compared are not put side by side."""
    with pytest.raises(ConfigurationError, match="more than one"):
        report.make_table([_result(), other])


def test_results_of_a_checkout_with_changes_are_refused(report: Any) -> None:
    """Two different sets of changes have the same name."""
    with pytest.raises(ConfigurationError, match=r"abc\+, a checkout with changes"):
        report.make_table([_result(commit="abc+"), _result("flush", commit="abc+")])


def test_benchmarks_without_a_result_are_listed(report: Any) -> None:
    """A table that leaves out what failed would look complete."""
    names = [entry.name for entry in SUITE]

    assert "Without a result" not in report.make_table([_result(name) for name in names])
    table = report.make_table([_result(name) for name in names if name not in {"flush", "peers"}])
    assert "Without a result, because they failed or were not run: flush, peers." in table


def test_cases_that_are_not_quick_are_not_missing(report: Any) -> None:
    """They were left out on purpose."""
    names = [entry.name for entry in SUITE if entry.is_in("quick") and entry.name != "join"]

    table = report.make_table([_result(name, "quick") for name in names])

    assert "Without a result, because they failed or were not run: join." in table


def test_quick_figures_are_not_for_quoting(report: Any) -> None:
    """Quick figures are of one round."""
    assert "quote the full size only" in report.make_table([_result(size="quick")])
    assert "quote" not in report.make_table([_result()])


def test_figures_of_the_smallest_size_are_refused(report: Any) -> None:
    """At the smallest size, figures show only the start."""
    with pytest.raises(ConfigurationError, match="mean nothing"):
        report.make_table([_result(size="smallest")])


def test_only_the_text_between_the_markers_is_replaced(report: Any) -> None:
    """The rest of the page is written by hand."""
    page = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"

    assert report.replace_table(page, "new") == f"before\n{report.BEGIN}\nnew\n{report.END}\nafter\n"
    with pytest.raises(ConfigurationError, match="no lines"):
        report.replace_table("before", "new")


def test_page_of_measurements_has_the_markers(report: Any) -> None:
    """`flowcore bench report` finds its place."""
    assert report.replace_table((FOLDER.parents[1] / report.PAGE).read_text(), "new")


def test_readme_quotes_speed_only_from_the_table(report: Any) -> None:
    """Figures of several machines and commits do not stand side by side."""
    root = FOLDER.parents[1]
    table = (root / report.PAGE).read_text().partition(report.BEGIN)[2].partition(report.END)[0]
    speeds = r"\d[\d,.]* (?:times|ms|records/s|bids/s|of the (?:speed|throughput))"

    quoted = re.findall(speeds, (root / "README.md").read_text())

    assert [each for each in quoted if each not in table] == []
