"""Locks: one process at a time, and free again however that process ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from flowcore.errors import RunError

__all__ = ["exclusive"]


@contextmanager
def exclusive(path: Path, refusal: str) -> Iterator[None]:
    """Hold a lock file.

    Args:
        path: The lock file; its folder is made if it is missing.
        refusal: What to say where another process holds it.

    Raises:
        RunError: Another process, or another holder in this one, has the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        msg = f"{refusal} (lock {path})"
        raise RunError(msg) from error
    try:
        yield
    finally:
        lock.release()
