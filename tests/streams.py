"""A pytest plugin that divides one run among several processes, its streams.

``python -m pytest -p tests.streams --claims FOLDER PATHS...`` runs the files that no other stream has claimed
in that empty folder. All streams have the same arguments. They take files in the order of the arguments, each
the next one when its own ends, so they end at about the same time. One with ``--begin FOLDER`` takes those of
the folder first.

The ids of the tests that failed are appended to `FAILED` in that folder, one in a line.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

__all__ = ["FAILED", "pytest_addoption", "pytest_runtest_makereport", "pytest_runtestloop"]

FAILED = "failed"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the folder that the streams share, and for where this one begins."""
    parser.addoption("--claims", type=Path, required=True, help="Folder in which streams claim files.")
    parser.addoption("--begin", type=Path, help="Folder whose files this stream takes first.")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Append the id of a test that failed, or whose fixtures did."""
    report = yield
    if report.failed:
        with (item.config.option.claims / FAILED).open("a") as failed:
            failed.write(f"{item.nodeid}\n")
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests of each claimed file, in place of pytest's own loop."""
    if session.testsfailed or session.config.option.collectonly:
        return None  # pytest's own loop reports what could not be collected
    claimed = _claim(session)
    item = next(claimed, None)
    while item is not None:
        following = next(
            claimed, None
        )  # claimed before, since pytest ends the fixtures that it does not need
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def _claim(session: pytest.Session) -> Iterator[pytest.Item]:
    """The items of the files that this stream claims, each file when the one before it is about to end."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in session.items:
        files.setdefault(item.path, []).append(item)
    folder: Path = session.config.option.claims
    begin: Path | None = session.config.option.begin
    for file in sorted(files, key=lambda file: begin is not None and begin.absolute() not in file.parents):
        try:
            (folder / str(file).replace("/", ".")).touch(exist_ok=False)
        except FileExistsError:
            continue
        yield from files[file]
