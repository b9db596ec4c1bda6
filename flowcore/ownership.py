"""Whose files are: what another user owns, could put in the place of a file, or could write.

Root is no other user: it reads and writes everything anyway.
"""

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

__all__ = ["foreign_link", "forget_groups", "is_foreign", "is_own_group", "is_writable_by_others"]

_ROOT = 0
_MOST_LINKS = 40
"""As many links as Linux follows on the way to a file; then it fails."""


def is_foreign(found: os.stat_result) -> bool:
    """Whether another user owns a file."""
    return found.st_uid not in (os.geteuid(), _ROOT)


def is_writable_by_others(found: os.stat_result) -> bool:
    """Whether the mode of a file lets others write it. A link has no permissions of its own."""
    mode = found.st_mode
    return not stat.S_ISLNK(mode) and bool(
        mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not is_own_group(found))
    )


def foreign_link(path: Path) -> tuple[Path, int] | None:
    """The first link of another user on the way to a file, and that user; the file may be missing."""
    for link in _links(path.absolute()):
        if is_foreign(found := link.lstat()):
            return link, found.st_uid
    return None


def is_own_group(found: os.stat_result) -> bool:
    """Whether a folder's group is the user's alone, by its number, or was given by root as to a container."""
    is_given = found.st_uid == _ROOT and found.st_gid in os.getgroups()
    return (found.st_gid == os.geteuid() or is_given) and not _other_members(found.st_gid)


def forget_groups() -> None:
    """Look up the members of groups again."""
    _other_members.cache_clear()


def _links(path: Path) -> Iterator[Path]:
    """The links that an absolute path leads through, also those behind a link, in their order."""
    place, parts, count = Path(path.anchor), [*reversed(path.relative_to(path.anchor).parts)], 0
    while parts and count < _MOST_LINKS:
        place = place.parent if (part := parts.pop()) == ".." else place / part
        if place.is_symlink():
            yield place
            count += 1
            target = place.readlink()
            place = Path(target.anchor) if target.is_absolute() else place.parent
            parts += reversed(target.relative_to(target.anchor).parts)


@cache
def _other_members(group: int) -> frozenset[str]:
    """The accounts in a group, also those whose own group it is, without this user and root.

    None is in group 0: it is root's, although some systems put accounts such as ``halt`` there, and a
    container's user belongs to it who has no account.
    """
    if group == _ROOT:
        return frozenset()
    accounts, named = pwd.getpwall(), list[str]()
    own = {each.pw_name for each in accounts if each.pw_uid in (os.geteuid(), _ROOT)}
    with suppress(KeyError):  # a directory need not list its accounts
        own.add(pwd.getpwuid(os.geteuid()).pw_name)
    with suppress(KeyError):  # a container's group often has a number only
        named = grp.getgrgid(group).gr_mem
    return frozenset({*named, *(each.pw_name for each in accounts if each.pw_gid == group)} - own)
