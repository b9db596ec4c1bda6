"""Print a table of statement and branch coverage by package of flowcore, from coverage's JSON report."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table


def main(report: Path) -> None:
    """Print the table of one report."""
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for file, found in json.loads(report.read_text())["files"].items():
        numbers = {key: value for key, value in found["summary"].items() if isinstance(value, int)}
        for package in (Path(file).parts[1].removesuffix(".py"), "all"):
            sums[package].update(numbers)
    table = Table("package", "statements", "covered", "branches", "covered")
    for package, numbers in sorted(sums.items(), key=lambda item: (item[0] == "all", item[0])):
        table.add_row(
            package,
            f"{numbers['num_statements']:,}",
            _percent(numbers["covered_lines"], numbers["num_statements"]),
            f"{numbers['num_branches']:,}",
            _percent(numbers["covered_branches"], numbers["num_branches"]),
        )
    Console().print(table)


def _percent(covered: int, total: int) -> str:
    return f"{100 * covered / total:.1f} %" if total else "-"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
