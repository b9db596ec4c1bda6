"""Files of bounded sources: whether they are there, whose they are, and which version they have."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from flowcore.api.connectors import Csv, Json, Parquet
from flowcore.api.operators import Read
from flowcore.errors import RunError
from flowcore.ownership import foreign_link
from flowcore.settings import Settings
from flowcore.spark.context import path_of

__all__ = ["files_version", "require_files"]


def require_files(nodes: Iterable[Read], settings: Settings) -> None:
    """Require that the files of sources on this machine are there.

    Raises:
        RunError: A source does not exist, or is behind a link of another user.
    """
    for node in nodes:
        if isinstance(node.source, (Csv, Json, Parquet)):
            _require_path(node.name, path_of(node.source.path, settings))


def files_version(name: str, path: str) -> str:
    """The names, sizes and times of the files of a source as a digest; empty if they are not on this machine.

    Raises:
        RunError: The source does not exist, or another user's link is on the way to it or in it.
    """
    if "://" in path:
        return ""
    _require_path(name, path)
    root = Path(path)
    files = [root] if root.is_file() else sorted(_find_files(name, root))
    digest = hashlib.sha256()
    for file in files:
        entry = file.stat()
        digest.update(f"{file.relative_to(root)} {entry.st_size} {entry.st_mtime_ns}\n".encode())
    return f"{len(files)} files {digest.hexdigest()}"


def _require_path(name: str, path: str) -> None:
    if "://" in path:
        return
    _require_own_links(name, Path(path))
    if not Path(path).exists():
        msg = (
            f"source {name!r}: {path} does not exist: there is nothing to read; correct the path, or set "
            "data.dir, the folder that relative paths start from"
        )
        raise RunError(msg)


def _require_own_links(name: str, path: Path) -> None:
    """Refuse a link of another user: who writes files for the flow could make it read its secrets."""
    if found := foreign_link(path):
        link, owner = found
        msg = (
            f"source {name!r}: {link} is a link of user {owner}, who chooses what the flow would read in its "
            f"place, perhaps what only the flow's user may read; copy the file, or, if it is meant to be "
            f"there: chown -h {os.geteuid()} {link}"
        )
        raise RunError(msg)


def _find_files(name: str, root: Path) -> Iterator[Path]:
    """The files below a folder, also through links, as Spark reads them."""
    for folder, inner, names in os.walk(root, followlinks=True):
        here = Path(folder)
        for each in (*inner, *names):
            if (here / each).is_symlink():
                _require_own_links(name, here / each)
        inner[:] = [each for each in inner if not _leads_back(here / each)]
        yield from (here / each for each in names if (here / each).is_file())


def _leads_back(folder: Path) -> bool:
    """Whether a folder is a link to one that it is in."""
    return folder.is_symlink() and folder.resolve() in {above.resolve() for above in folder.parents}
