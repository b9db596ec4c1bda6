"""A table of all results that `flowcore bench all` has kept, written into a page of docs.

The results of one table are of one commit without changes, one machine and one size. Benchmarks without a
result are listed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from flowcore.errors import ConfigurationError
from tests.benchmarks._suite import SUITE

PAGE = Path("docs/measurements.md")
RESULTS = Path(".flowcore/bench")
_COLUMNS = (
    "benchmark", "contender or ratio", "median", "least to most", "rounds", "records/s without start",
    "processor time", "memory at peak",
)  # fmt: skip
_NOTE_CHARACTERS = 200
_NOT_FOR_QUOTING = (
    "These sizes show whether a change has moved something. Rates contain the start of a run, and one round "
    "does not tell how much a figure varies: quote the full size only."
)
BEGIN, END = "<!-- flowcore bench report: begin -->", "<!-- flowcore bench report: end -->"


@click.command()
@click.option(
    "--results", type=click.Path(path_type=Path), default=RESULTS, show_default=True,
    help="Folder that `flowcore bench all` has written.",
)  # fmt: skip
@click.option(
    "--page", type=click.Path(path_type=Path), default=PAGE, show_default=True,
    help="Page in which the table between the markers is replaced.",
)  # fmt: skip
def command(*, results: Path, page: Path) -> None:
    """Write the table of results into docs/measurements.md."""
    found = [json.loads(file.read_text()) for file in sorted(results.glob("*.json"))]
    page.write_text(replace_table(page.read_text(), make_table(found)))
    click.echo(f"{page}: {len(found)} benchmarks")


def make_table(results: Sequence[Mapping[str, Any]]) -> str:
    """The results as Markdown.

    Raises:
        ConfigurationError: There are none, or they are of several commits, machines or sizes, of the smallest
            size, or of a checkout with changes.
    """
    if not results:
        msg = "there are no results: the table would be empty; run: flowcore bench all"
        raise ConfigurationError(msg)
    about = {}
    for name in ("commit", "machine", "size"):
        values = sorted({str(each["report"].get(name, each.get(name))) for each in results})
        if len(values) > 1:
            msg = (
                f"the results are of more than one {name} ({', '.join(values)}): a table of both would "
                "compare what cannot be compared; run: flowcore bench all"
            )
            raise ConfigurationError(msg)
        about[name] = values[0]
    if about["commit"].endswith("+"):
        msg = (
            f"the results are of commit {about['commit']}, a checkout with changes: nobody could tell which, "
            "and two of them look like one commit; commit them, and run: flowcore bench all"
        )
        raise ConfigurationError(msg)
    if about["size"] == "smallest":
        msg = "the results are of the smallest size: their figures mean nothing; run: flowcore bench all"
        raise ConfigurationError(msg)
    kept = {each["name"] for each in results}
    due = [entry.name for entry in SUITE if entry.is_in(about["size"])]
    missing = [name for name in due if name not in kept]
    return "\n".join(
        [
            f"Commit {about['commit']}, {about['machine']}; size: {about['size']}.",
            *([_NOT_FOR_QUOTING] if about["size"] == "quick" else []),
            *(
                [f"Without a result, because they failed or were not run: {', '.join(missing)}."]
                if missing
                else []
            ),
            "",
            f"| {' | '.join(_COLUMNS)} |",
            "| --- " * len(_COLUMNS) + "|",
            *(row for each in results for row in _rows(each)),
            "",
            "| benchmark | command |",
            "| --- | --- |",
            *(f"| {each['name']} | `{each['command']}` |" for each in results),
        ]
    )


def replace_table(page: str, table: str) -> str:
    """The page with this table between its markers.

    Raises:
        ConfigurationError: It has no markers.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        msg = f"the page has no lines {BEGIN} and {END}: there is no place for the table; add both"
        raise ConfigurationError(msg)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def _rows(result: Mapping[str, Any]) -> Iterator[str]:
    report = result["report"]
    figures: Mapping[str, Mapping[str, Any]] = report.get("figures", {})
    for name, figure in figures.items():
        rounds = figure["rounds"]
        least, most = _shown(figure["min"]), _shown(figure["max"])
        by_slope, cpu_s, peak_mb = (
            f"{_shown(figure[key])}{unit}" if key in figure else ""
            for key, unit in (("by_slope", ""), ("cpu_s", " s"), ("peak_mb", " MB"))
        )
        shown = f"{_shown(figure['median'])} {figure['unit']}"
        yield (
            f"| {result['name']} | {name} | {shown} | {least} to {most} | {len(rounds)} | {by_slope} | "
            f"{cpu_s} | {peak_mb} |"
        )
    for name in report.get("ratios", ()):
        yield f"| {result['name']} | `{name}` | {report[name]:.3f} | | | | | |"
    for note in report.get("notes", ()):
        text = " ".join(note.replace("|", "/").split())
        yield f"| {result['name']} | {text[:_NOTE_CHARACTERS]} | | | | | | |"
    if not figures:
        yield f"| {result['name']} | passed in {result['seconds']} s | | | | | | |"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:,.2f}"
