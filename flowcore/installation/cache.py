"""The cache folder of downloads and class archives, its lock, and who may write to it.

JVMs run the code that is in it, so it belongs to the user (or to root, as in an image), and nobody else may
write there.
"""

import fcntl
import logging
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flowcore.errors import InstallationError
from flowcore.ownership import is_foreign

__all__ = ["cache_folder", "lock_folder", "remove_partial", "require_own"]

_log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """The cache folder: FLOWCORE_CACHE, else `flowcore` in the user's cache folder.

    It need not exist. It can be deleted at the cost of a download.
    """
    if chosen := os.environ.get("FLOWCORE_CACHE"):
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "flowcore"


@contextmanager
def lock_folder(folder: Path) -> Iterator[int]:
    """Create the folder and hold its lock; a second process says so, and waits until the first releases it.

    Yields:
        The lock's file descriptor. Pass it to a child that writes in the folder (`pass_fds`): if this process
        is killed, the child still holds the lock.

    Raises:
        InstallationError: The folder cannot be written.
    """
    try:
        _make(folder)
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        message = (
            f"the cache folder {folder} cannot be written ({error.strerror}): nothing can be kept there; "
            "set FLOWCORE_CACHE to a folder that can be written"
        )
        raise InstallationError(message) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.warning("waiting for another process that writes to %s", folder)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def remove_partial(folder: Path) -> None:
    """Remove the files of killed processes; the caller holds the folder's lock."""
    for leftover in folder.glob(".partial-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def require_own(*paths: Path) -> None:
    """Check that only the user and root can write to folders or files of the cache; missing ones are skipped.

    Raises:
        InstallationError: Another user owns one, or may write to it.
    """
    for path in paths:
        try:
            entry = path.stat()
        except FileNotFoundError:
            continue
        if is_foreign(entry):
            problem, mend = f"belongs to user {entry.st_uid}", f"sudo chown -R {os.geteuid()} {path}"
        elif entry.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            problem, mend = (
                f"can be written by others (mode {entry.st_mode & 0o777:o})",
                f"chmod -R go-w {path}",
            )
        else:
            continue
        message = (
            f"{path} {problem}: others could choose the code that Spark runs; if you trust what is "
            f"there, run: {mend}, or set FLOWCORE_CACHE to a folder of your own"
        )
        raise InstallationError(message)


def _make(folder: Path) -> None:
    """Make a folder of the cache that only the user can write to, whatever the umask."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o755, exist_ok=True)
