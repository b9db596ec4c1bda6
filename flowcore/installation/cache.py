"""Where does flowcore keep what it downloads or makes once, and who may write there now?"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flowcore.errors import InstallationError

__all__ = ["cache_folder", "locked", "remove_partial"]


def cache_folder() -> Path:
    """Return the cache folder: FLOWCORE_CACHE, else `flowcore` in the user's cache folder.

    It need not exist yet. Deleting it costs a download, nothing else.
    """
    if chosen := os.environ.get("FLOWCORE_CACHE"):
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "flowcore"


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Make the folder and hold its lock: a second process waits here until the first is done.

    Yields:
        The lock's file descriptor. Hand it to a child (`pass_fds`) that writes in the folder: should
        this process be killed, the lock then lasts until the child has ended too.

    Raises:
        InstallationError: The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        message = (
            f"the cache folder {folder} cannot be written ({error.strerror}): nothing can be kept there; "
            "set FLOWCORE_CACHE to a folder that can"
        )
        raise InstallationError(message) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def remove_partial(folder: Path) -> None:
    """Remove what killed processes left; call it while holding the folder's lock."""
    for leftover in folder.glob(".partial-*"):
        shutil.rmtree(leftover, ignore_errors=True)
