"""Private files: a run writes for its user only, and nobody else can change its state."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from flowcore.errors import StateError

__all__ = ["prepare_state_folder", "private_files"]

_ROOT = 0


@contextmanager
def private_files(umask: int) -> Iterator[None]:
    """Let this process, and those that it starts, write files with the permissions that a umask leaves."""
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)


def prepare_state_folder(folder: Path) -> None:
    """Make the state folder, for its user only, or check that nobody else can change it.

    Raises:
        StateError: Another user owns or can write it, or a flow's folder in it, or owns a link to it.
    """
    _require_own_links(folder.absolute())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in (folder, *(child for child in folder.iterdir() if child.is_dir())):
        _require_own(each)


def _require_own_links(folder: Path) -> None:
    """Check that no other user's link is on the way to a folder, which need not exist."""
    for each in (folder, *folder.parents):
        if each.is_symlink() and (owner := each.lstat().st_uid) not in (os.geteuid(), _ROOT):
            _refuse(folder, f"is behind the link {each} of user {owner}", "pass another state.dir")


def _require_own(folder: Path) -> None:
    found, user = folder.stat(), os.geteuid()
    if found.st_uid not in (user, _ROOT):
        why = f"is owned by user {found.st_uid}, and this run is user {user}"
        way = f"run as user {found.st_uid}, pass another state.dir, or: chown -R {user} {folder}"
    elif found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_own_group(found)):
        why = f"has mode {stat.S_IMODE(found.st_mode):o}, so that others can write it"
        way = f"if its content is your own: chmod go-w {folder}; otherwise pass another state.dir"
    else:
        return
    _refuse(folder, why, way)


def _refuse(folder: Path, why: str, way: str) -> NoReturn:
    msg = (
        f"the state folder {folder} {why}: they could change checkpoints and results, on which the flow "
        f"relies; {way}"
    )
    raise StateError(msg)


def _is_own_group(found: os.stat_result) -> bool:
    """Whether a folder's group is the user's alone, by its number, or was given by root as to a container."""
    return found.st_gid == os.geteuid() or (found.st_uid == _ROOT and found.st_gid in os.getgroups())
