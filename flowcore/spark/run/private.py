"""Private files: a run writes for its user only, and nobody else can change its state."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from flowcore.errors import StateError
from flowcore.ownership import foreign_link, forget_groups, is_foreign, is_own_group, is_writable_by_others

__all__ = ["prepare_state_folder", "private_files"]

_STATE = ("checkpoints", "progress", "results")
"""Folders in that of a flow, whose entries are those of queries and stages."""


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

    If other users can enter it, everything in it is checked, else only the folders of flows. So is what the
    links of an operator lead to, who may have moved a flow, its state, or that of a query, to another disk.

    Raises:
        StateError: Another user owns or can write it, or what is in it, or owns a link to it.
    """
    forget_groups()
    _require_own_links(f"the state folder {folder}", folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    _require_own(f"the state folder {folder}", folder, found)
    _require_own_content(folder, deep=_others_can_enter(found))
    for place in _places(folder):
        if place.is_symlink() and place.is_dir():
            with suppress(FileNotFoundError):
                _require_own_target(place)


def _require_own_target(link: Path) -> None:
    """Check a folder that a link leads to: the mode of the state folder does not keep others away from it."""
    what = f"what is in the state folder: {link}"
    _require_own_links(what, link)
    target = link.resolve()
    found = target.stat()
    _require_own(what, target, found)
    if _others_can_enter(found):
        _require_own_content(target, deep=True)


def _require_own_content(folder: Path, *, deep: bool) -> None:
    for each in _content(folder, deep=deep):
        with suppress(FileNotFoundError):  # another run has removed it meanwhile
            _require_own(f"what is in the state folder: {each}", folder, each.lstat())


def _places(folder: Path) -> Iterator[Path]:
    """Where folders of flows are, in them those of `_STATE`, and in them those of queries and stages."""
    for flow in _entries(folder):
        yield flow
        for state in (flow / name for name in _STATE):
            yield state
            yield from _entries(state)


def _entries(folder: Path) -> list[Path]:
    with suppress(OSError):  # it is not there, or not a folder
        return [*folder.iterdir()]
    return []


def _content(folder: Path, *, deep: bool) -> Iterator[Path]:
    """Everything below a folder without following links, or only the folders in it."""
    for place, folders, files in os.walk(folder):
        yield from (Path(place, name) for name in (*folders, *(files if deep else ())))
        if not deep:
            return


def _others_can_enter(found: os.stat_result) -> bool:
    of_group = bool(found.st_mode & stat.S_IXGRP) and not is_own_group(found)
    return of_group or bool(found.st_mode & stat.S_IXOTH)


def _require_own_links(what: str, path: Path) -> None:
    """Check that no other user's link is on the way to a file, which need not exist."""
    if found := foreign_link(path):
        link, owner = found
        _refuse(what, f"is behind the link {link} of user {owner}", "pass another state.dir")


def _require_own(what: str, folder: Path, found: os.stat_result) -> None:
    """Check owner and mode of a folder or of what is in it; the error has the command for the folder."""
    if is_foreign(found):
        user = os.geteuid()
        why = f"is owned by user {found.st_uid}, and this run is user {user}"
        way = f"run as user {found.st_uid}, pass another state.dir, or: chown -R {user} {folder}"
    elif is_writable_by_others(found):
        why = f"has mode {stat.S_IMODE(found.st_mode):o}, so that others can write it"
        way = f"if its content is your own: chmod -R go-w {folder}; otherwise pass another state.dir"
    else:
        return
    _refuse(what, why, way)


def _refuse(what: str, why: str, way: str) -> NoReturn:
    msg = f"{what} {why}: they could change checkpoints and results, on which the flow relies; {way}"
    raise StateError(msg)
