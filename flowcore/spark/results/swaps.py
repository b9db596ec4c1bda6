"""Swaps: replace the folders of several sinks together.

A stage writes each folder beside its target, under a name with its version that readers ignore. Writing the
stage's manifest, which names the version, is the commit. Only then are the folders moved, one after another.
The next run rolls back a run that was killed before the commit, and finishes a run that was killed after it.
It takes the targets from the plan: a manifest names no folders, so a forged one moves none.
"""

import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from flowcore.errors import ResultError
from flowcore.failpoints import failpoint

__all__ = ["Swap", "finish_swaps", "require_replaceable", "roll_back_swaps"]

_OLD = ".old"
_VERSION = re.compile(r"\d{8}T\d{6}-[0-9a-f]{8}(\.old)?")
_WRITTEN = re.compile(r"part-.*|_SUCCESS|\..*\.crc")
"""The names of the files that Spark writes."""


@dataclass(frozen=True, slots=True)
class Swap:
    """A complete folder, and the folder that it replaces.

    Attributes:
        staged: The complete folder, beside the target.
        target: The folder that readers read.
    """

    staged: str
    target: str

    @classmethod
    def of(cls, target: str, version: str) -> Self:
        """The swap of a target in one version of a stage's output.

        Raises:
            ResultError: ``version`` is not the name of a version.
        """
        if not _VERSION.fullmatch(version) or version.endswith(_OLD):
            msg = (
                f"{version!r} is not the name of a version of {target}, such as 20250101T000000-0123abcd: "
                "the manifest was changed; delete it and run the stage again"
            )
            raise ResultError(msg)
        path = Path(target)
        return cls(str(path.with_name(f".{path.name}.{version}")), str(path))

    @property
    def pending(self) -> bool:
        """Whether the folder has not been moved yet."""
        return Path(self.staged).exists()


def finish_swaps(swaps: Iterable[Swap]) -> None:
    """Move the committed folders that have not been moved yet."""
    for swap in swaps:
        _move(swap)


def roll_back_swaps(targets: Iterable[str]) -> None:
    """Remove what runs that were killed before their commit left beside these targets."""
    for target in map(Path, targets):
        siblings = target.parent.iterdir() if target.parent.is_dir() else ()
        for path in tuple(siblings):
            head, _, rest = path.name.partition(f".{target.name}.")
            if not head and _VERSION.fullmatch(rest):
                _remove(path)


def require_replaceable(targets: Iterable[str]) -> None:
    """Check that the folders to replace hold nothing but what a sink has written.

    Raises:
        ResultError: A target is a file, or holds other files or folders than an output.
    """
    for target in map(Path, targets):
        other = next(_find_others(target), None) if target.exists() else None
        if other is not None:
            msg = (
                f"folder {target} cannot be replaced by a sink: {other} was not written by one, and would be "
                "removed with it; choose another folder for the sink, or remove what is there"
            )
            raise ResultError(msg)


def _find_others(path: Path) -> Iterator[Path]:
    """What is not the output of a sink: files in folders, which may be those of a column's values."""
    if not path.is_dir():
        yield path
        return
    for entry in sorted(path.iterdir()):
        if entry.is_dir() and "=" in entry.name:
            yield from _find_others(entry)
        elif entry.is_dir() or not _WRITTEN.fullmatch(entry.name):
            yield entry


def _move(swap: Swap) -> None:
    staged, target = Path(swap.staged), Path(swap.target)
    old = staged.with_name(f"{staged.name}{_OLD}")
    if staged.exists():
        if target.exists():
            _remove(old)
            target.replace(old)
        failpoint("swap")
        staged.replace(target)
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
