"""Swaps: how do the folders of several sinks take the place of the old ones together?

A stage writes each folder beside its target, under a name that readers pass over. The stage's manifest
names them all; writing it is the commit. Only then are they moved, one after another. A run that is
killed before the commit is rolled back by the next one, a run that is killed after it is finished.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

__all__ = ["Swap", "finish", "roll_back"]

_VERSION = re.compile(r"\d{8}T\d{6}-[0-9a-f]{8}(\.old)?")


@dataclass(frozen=True, slots=True)
class Swap:
    """A complete folder, and the place that it takes.

    Attributes:
        staged: Beside the target.
        target: What readers read.
    """

    staged: str
    target: str

    @classmethod
    def of(cls, target: str, version: str) -> Self:
        """The swap of a target in one version of a stage's output."""
        path = Path(target)
        return cls(str(path.with_name(f".{path.name}.{version}")), str(path))

    @property
    def pending(self) -> bool:
        """The folder has not been moved yet."""
        return Path(self.staged).exists()


def finish(swaps: Iterable[Swap]) -> None:
    """Move what is committed and not moved yet; what is done already is left alone."""
    for swap in swaps:
        _move(swap)


def roll_back(targets: Iterable[str]) -> None:
    """Remove what runs left beside these targets that were killed before they were committed."""
    for target in map(Path, targets):
        siblings = target.parent.iterdir() if target.parent.is_dir() else ()
        for path in tuple(siblings):
            head, _, rest = path.name.partition(f".{target.name}.")
            if not head and _VERSION.fullmatch(rest):
                _remove(path)


def _move(swap: Swap) -> None:
    staged, target = Path(swap.staged), Path(swap.target)
    old = staged.with_name(f"{staged.name}.old")
    if staged.exists():
        if target.exists():
            _remove(old)
            target.replace(old)
        staged.replace(target)
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
