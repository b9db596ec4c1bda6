"""The cache folder of downloads and class archives, and its lock."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flowcore.errors import InstallationError

__all__ = ["cache_folder", "lock_folder", "remove_partial"]


def cache_folder() -> Path:
    """The cache folder: FLOWCORE_CACHE, else `flowcore` in the user's cache folder.

    It need not exist. It can be deleted at the cost of a download.
    """
    if chosen := os.environ.get("FLOWCORE_CACHE"):
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "flowcore"


@contextmanager
def lock_folder(folder: Path) -> Iterator[int]:
    """Create the folder and hold its lock; a second process waits until the first releases it.

    Yields:
        The lock's file descriptor. Pass it to a child that writes in the folder (`pass_fds`): if this process
        is killed, the child still holds the lock.

    Raises:
        InstallationError: The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        message = (
            f"the cache folder {folder} cannot be written ({error.strerror}): nothing can be kept there; "
            "set FLOWCORE_CACHE to a folder that can be written"
        )
        raise InstallationError(message) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def remove_partial(folder: Path) -> None:
    """Remove the files of killed processes; the caller holds the folder's lock."""
    for leftover in folder.glob(".partial-*"):
        shutil.rmtree(leftover, ignore_errors=True)
