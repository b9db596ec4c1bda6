"""History: what has a flow's live run told of itself, for as long as anybody may ask?

Files of JSON lines in a folder of the flow. The finest keeps each look at the run, coarser ones one look
a minute, in ten minutes, an hour. Each is put aside when it is full and the one that was put aside before
is forgotten, so the folder has a size it never exceeds: the last hours in detail, months in outline.

A line is written at once and never changed. A line that was cut off when a process was killed is left out by
readers, and ended by the next writer.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from flowcore.metrics.progress import FlowProgress

__all__ = ["HistoryWriter", "history_folder", "known_flows", "last_progress", "read_history"]

LEVELS_MS = {"all": 0, "1min": 60_000, "10min": 600_000, "1h": 3_600_000}
"""By the name of a file, the time between two of its lines."""

FILE_BYTES = 4 << 20
_TAIL_BYTES = 1 << 18


def history_folder(state_dir: Path, flow: str) -> Path:
    """Where the history of a flow is."""
    return state_dir.absolute() / flow / "progress"


class HistoryWriter:
    """Appends to a flow's history; one process at a time, the one that holds the flow's checkpoints.

    Args:
        folder: See `history_folder`; made if it is missing.
        file_bytes: A file is put aside when it has so many. The folder has at most eight times as many,
            and as many lines.
    """

    def __init__(self, folder: Path, file_bytes: int = FILE_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._file_bytes = file_bytes
        self._written_ms = {
            name: last.time_ms if (last := _last_of(folder, name)) else None for name in LEVELS_MS
        }

    def progressed(self, progress: FlowProgress) -> None:
        """Append one look at the run.

        Raises:
            OSError: The disk is full, or the folder cannot be written.
        """
        line = json.dumps(progress.stored(), separators=(",", ":")).encode() + b"\n"
        for name, apart_ms in LEVELS_MS.items():
            before_ms = self._written_ms[name]
            # A clock that was put back must not stop a file for as long.
            if before_ms is None or not 0 <= progress.time_ms - before_ms < apart_ms:
                _append(self._folder / f"{name}.jsonl", line, self._file_bytes)
                self._written_ms[name] = progress.time_ms


def known_flows(state_dir: Path) -> list[str]:
    """Names of the flows that have a history."""
    return sorted(folder.parent.name for folder in state_dir.absolute().glob("*/progress"))


def last_progress(folder: Path) -> FlowProgress | None:
    """The last look at the run, None if there never was one."""
    return _last_of(folder, next(iter(LEVELS_MS)))


def read_history(folder: Path, since_ms: int | None = None) -> list[FlowProgress]:
    """All that is still known, oldest first; the older, the coarser.

    Args:
        folder: See `history_folder`.
        since_ms: Leave out what is older.
    """
    found = {
        one.time_ms: one
        for name in LEVELS_MS
        for path in _newest_first(folder, name)
        for one in _lines(path)
        if since_ms is None or one.time_ms >= since_ms
    }
    return [found[time_ms] for time_ms in sorted(found)]


def _append(path: Path, line: bytes, file_bytes: int) -> None:
    if path.exists() and path.stat().st_size + len(line) > file_bytes:
        path.replace(_aside(path))
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                line = b"\n" + line
        file.write(line)


def _last_of(folder: Path, name: str) -> FlowProgress | None:
    for path in _newest_first(folder, name):
        if found := _lines(path, tail_bytes=_TAIL_BYTES):
            return found[-1]
    return None


def _newest_first(folder: Path, name: str) -> tuple[Path, Path]:
    # In this order, since the writer may just now put the newest aside: it is read twice then, not never.
    path = folder / f"{name}.jsonl"
    return path, _aside(path)


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def _lines(path: Path, tail_bytes: int | None = None) -> list[FlowProgress]:
    try:
        with path.open("rb") as file:
            if tail_bytes is not None:
                file.seek(max(os.fstat(file.fileno()).st_size - tail_bytes, 0))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    return [found for line in lines if (found := _parsed(line))]


def _parsed(line: bytes) -> FlowProgress | None:
    try:
        return FlowProgress.of(json.loads(line))
    except (ValueError, TypeError, AttributeError):  # cut off, or of another kind
        return None
