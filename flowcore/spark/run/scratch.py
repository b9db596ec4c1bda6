"""Scratch folders: the temporary files of a JVM, which a later start removes if the JVM was killed.

A JVM that is killed leaves 25 MB and more of native libraries, shuffle files and local copies of state. The
process that starts a JVM locks its folder. So a folder without a lock is abandoned, unless its JVM has
outlived that process.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

__all__ = ["make_scratch", "remove_scratch"]

_PREFIX = "flowcore-scratch-"
_held: dict[Path, int] = {}
"""The folders of this process, with their locks."""


def make_scratch() -> Path:
    """Make a folder for the next JVM of this process, and remove those of processes that were killed."""
    _remove_abandoned()
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = os.open(folder, os.O_RDONLY)
        with suppress(OSError):  # without locks nobody removes it
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():  # another process may have removed it before it was locked
            _held[folder] = lock
            return folder
        os.close(lock)


def remove_scratch() -> None:
    """Remove the folders of this process, whose JVM has ended."""
    while _held:
        folder, lock = _held.popitem()
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it is locked, is that of another user, or has just been removed
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.getuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if not _is_used(folder):
                        shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _is_used(folder: Path) -> bool:
    """Whether a JVM has the folder, which may outlive the process that has started it."""
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in argument for argument in process.info["cmdline"] or ()):
            return True
    return False
