"""The progress history of a flow's live runs, in files of JSON lines with a bounded total size.

The finest file keeps every progress, coarser ones keep one per minute, ten minutes and hour. A full file is
renamed, which replaces the file that was renamed before. So the last hours are kept in detail, months in
outline.

A line is written at once and never changed. If a process was killed in the middle of a line, readers skip
that line and the next writer ends it.
"""

import json
import os
from dataclasses import replace
from pathlib import Path

from flowcore.metrics.progress import FlowProgress

__all__ = ["HistoryWriter", "history_folder", "known_flows", "last_progress", "read_history"]

LEVELS_MS = {"all": 0, "1min": 60_000, "10min": 600_000, "1h": 3_600_000}
"""Time between two lines of a file, by its name."""

FILE_BYTES = 4 << 20
_TAIL_BYTES = 1 << 18
_MOST_TEXT = 4_000
"""Characters of an error or a reason: they may quote data, and the last line should fit into the tail."""


def history_folder(state_dir: Path, flow: str) -> Path:
    return state_dir.absolute() / flow / "progress"


class HistoryWriter:
    """Appends to a flow's history; only the process that holds the flow's checkpoints may do so.

    A previous run that has not reported its end is recorded as killed.

    Args:
        folder: See `history_folder`; created if it is missing.
        file_bytes: Size at which a file is renamed. The folder never exceeds eight times this size.
    """

    def __init__(self, folder: Path, file_bytes: int = FILE_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._file_bytes = file_bytes
        self._written_ms = {
            name: last.time_ms if (last := _last_of(folder, name)) else None for name in LEVELS_MS
        }

        last = _last_of(folder, next(iter(LEVELS_MS)))
        if last is not None and last.state == "running":
            self._append(next(iter(LEVELS_MS)), replace(last, state="killed"))

    def progressed(self, progress: FlowProgress) -> None:
        """Append the progress.

        Raises:
            OSError: The disk is full, or the folder cannot be written.
        """
        for name, interval_ms in LEVELS_MS.items():
            before_ms = self._written_ms[name]
            # A clock that was set back must not stop a file.
            if before_ms is None or not 0 <= progress.time_ms - before_ms < interval_ms:
                self._append(name, progress)
                self._written_ms[name] = progress.time_ms

    def _append(self, name: str, progress: FlowProgress) -> None:
        switches = tuple(replace(each, reason=_short(each.reason)) for each in progress.switches)
        progress = replace(progress, error=_short(progress.error), switches=switches)
        line = json.dumps(progress.stored(), separators=(",", ":")).encode() + b"\n"
        _append(self._folder / f"{name}.jsonl", line, self._file_bytes)


def known_flows(state_dir: Path) -> list[str]:
    return sorted(folder.parent.name for folder in state_dir.absolute().glob("*/progress"))


def last_progress(folder: Path) -> FlowProgress | None:
    """The last progress of the run, None if there is none."""
    return _last_of(folder, next(iter(LEVELS_MS)))


def read_history(folder: Path, since_ms: int | None = None) -> list[FlowProgress]:
    """The progress that is still kept, oldest first, optionally since a time; older progress is coarser."""
    found: dict[int, FlowProgress] = {}
    for name in LEVELS_MS:
        for path in _newest_first(folder, name):
            for one in reversed(_lines(path)):
                # The finest file comes first, and a later line says how a run ended.
                found.setdefault(one.time_ms, one)
    return [found[time_ms] for time_ms in sorted(found) if since_ms is None or time_ms >= since_ms]


def _short(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


def _append(path: Path, line: bytes, file_bytes: int) -> None:
    if path.exists() and path.stat().st_size + len(line) > file_bytes:
        path.replace(_previous(path))
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                line = b"\n" + line
        file.write(line)


def _last_of(folder: Path, name: str) -> FlowProgress | None:
    for path in _newest_first(folder, name):
        for tail_bytes in (_TAIL_BYTES, None):  # one line may be longer, as of a flow with many partitions
            if found := _lines(path, tail_bytes):
                return found[-1]
    return None


def _newest_first(folder: Path, name: str) -> tuple[Path, Path]:
    # If the writer renames the newest file meanwhile, this order reads it twice; the other would miss it.
    path = folder / f"{name}.jsonl"
    return path, _previous(path)


def _previous(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def _lines(path: Path, tail_bytes: int | None = None) -> list[FlowProgress]:
    try:
        with path.open("rb") as file:
            if tail_bytes is not None:
                file.seek(max(os.fstat(file.fileno()).st_size - tail_bytes, 0))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            found.append(FlowProgress.of(json.loads(line)))
        except (ValueError, TypeError, AttributeError, RecursionError):
            continue
    return found
