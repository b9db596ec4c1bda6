"""Private files: a run writes for its user only, and nobody else can change its state."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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

    If other users can enter it, everything in it is checked, else only the folders of flows.

    Raises:
        StateError: Another user owns or can write it, or what is in it, or owns a link to it.
    """
    _require_own_links(folder.absolute())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    _require_own(f"the state folder {folder}", folder, found)
    for each in _content(folder, deep=_others_can_enter(found)):
        with suppress(FileNotFoundError):  # another run has removed it meanwhile
            _require_own(f"what is in the state folder: {each}", folder, each.lstat())
            if each.is_symlink() and each.parent == folder and each.is_dir():  # a flow's folder
                _require_own(f"what is in the state folder: {each}", each.resolve(), each.stat())


def _content(folder: Path, *, deep: bool) -> Iterator[Path]:
    """Everything below a folder without following links, or only the folders in it."""
    for place, folders, files in os.walk(folder):
        yield from (Path(place, name) for name in (*folders, *(files if deep else ())))
        if not deep:
            return


def _others_can_enter(found: os.stat_result) -> bool:
    of_group = bool(found.st_mode & stat.S_IXGRP) and not _is_own_group(found)
    return of_group or bool(found.st_mode & stat.S_IXOTH)


def _require_own_links(folder: Path) -> None:
    """Check that no other user's link is on the way to a folder, which need not exist."""
    for each in (folder, *folder.parents):
        if each.is_symlink() and (owner := each.lstat().st_uid) not in (os.geteuid(), _ROOT):
            _refuse(
                f"the state folder {folder}",
                f"is behind the link {each} of user {owner}",
                "pass another state.dir",
            )


def _require_own(what: str, folder: Path, found: os.stat_result) -> None:
    """Check owner and mode of a folder or of what is in it; the error has the command for the folder."""
    user, mode = os.geteuid(), found.st_mode
    if found.st_uid not in (user, _ROOT):
        why = f"is owned by user {found.st_uid}, and this run is user {user}"
        way = f"run as user {found.st_uid}, pass another state.dir, or: chown -R {user} {folder}"
    elif stat.S_ISLNK(mode):  # it has no permissions of its own
        return
    elif mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not _is_own_group(found)):
        why = f"has mode {stat.S_IMODE(mode):o}, so that others can write it"
        way = f"if its content is your own: chmod -R go-w {folder}; otherwise pass another state.dir"
    else:
        return
    _refuse(what, why, way)


def _refuse(what: str, why: str, way: str) -> NoReturn:
    msg = f"{what} {why}: they could change checkpoints and results, on which the flow relies; {way}"
    raise StateError(msg)


def _is_own_group(found: os.stat_result) -> bool:
    """Whether a folder's group is the user's alone, by its number, or was given by root as to a container."""
    return found.st_gid == os.geteuid() or (found.st_uid == _ROOT and found.st_gid in os.getgroups())
