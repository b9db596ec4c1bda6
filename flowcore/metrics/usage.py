"""The use of the machine by a run: memory, open files and threads of its first process and all below it.

They are the driver, Spark's JVM and the Python workers of a local master. The memory is the resident set;
pages that processes share count for each of them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

import psutil

__all__ = ["Usage", "process_family", "read_usage", "root_of_run"]


@dataclass(frozen=True, slots=True)
class Usage:
    """The memory, open files and threads of a process and its descendants."""

    memory_bytes: int
    open_files: int
    threads: int


def root_of_run(*, submitted: bool) -> int:
    """The process below which those of this run are: this one, or the JVM of spark-submit that started it."""
    parent = os.getppid()
    with suppress(psutil.Error):  # a JVM that has ended is no parent any more
        if submitted and psutil.Process(parent).name() == "java":
            return parent
    return os.getpid()


def process_family(pid: int) -> list[psutil.Process]:
    """A process and its descendants; none if it has ended. Each of them may end at any time."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def read_usage(pid: int) -> Usage | None:
    """The current use by a process with its descendants; None if it has ended."""
    found = []
    for process in process_family(pid):
        with suppress(psutil.Error):  # it has ended, or belongs to another user
            found.append((process.memory_info().rss, process.num_fds(), process.num_threads()))
    return Usage(*map(sum, zip(*found, strict=True))) if found else None
