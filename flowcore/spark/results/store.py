"""Results of bounded stages: where their tables are, and which versions are kept.

The folder ``<state.dir>/<flow>/results/<stage>`` has ``manifest.json`` and a folder for each version. A
version is invisible until the manifest names it. A run of a stage holds the stage's lock, and removes what a
killed run left. An older version is removed when no checkpoint of a live query needs it.
"""

from __future__ import annotations

import calendar
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flowcore.errors import ResultError, RunError
from flowcore.spark.results.manifest import Manifest
from flowcore.spark.results.swaps import Swap, finish_swaps

if TYPE_CHECKING:  # `flowcore plan` reads sizes of results, and does not wait for PySpark
    from flowcore.spark.context import Context

__all__ = ["NEXT", "ResultStore", "StageFolder", "results_of", "version_time_s"]

NEXT = ".next-"
"""What the name of a reader begins with while it is about to take a version over."""

_TIME = "%Y%m%dT%H%M%S"
_WAIT_S = 10.0
"""How long a run waits for the stage's lock, which a live query holds while it removes unused versions."""


def version_time_s(version: str) -> float:
    """The start of the run that made a version, in seconds since the epoch.

    Raises:
        ValueError: The text is not the name of a version.

    >>> version_time_s("19700101T000010-0a1b2c3d")
    10.0
    """
    return float(calendar.timegm(time.strptime(version.partition("-")[0], _TIME)))


@dataclass(frozen=True, slots=True)
class StageFolder:
    """The folder of one stage's results."""

    root: Path
    stage: str

    @property
    def manifest_path(self) -> Path:
        """The file that makes a version visible."""
        return self.root / "manifest.json"

    def manifest(self, version: str | None = None) -> Manifest | None:
        """The committed result, or an earlier version of it that is kept; None if there is none."""
        path = self.manifest_path if version is None else self.root / version / self.manifest_path.name
        return Manifest.read(path) if path.exists() else None

    def finish_commit(self, targets: Iterable[str]) -> None:
        """Move the sinks of a run that was killed after its commit, before all of them were moved.

        Args:
            targets: The folders of the stage's sinks, by the plan.

        Raises:
            RunError: Another run of the stage is under way.
        """
        targets = tuple(targets)
        if _pending(self.manifest(), targets):
            with self._locked(_WAIT_S):
                finish_swaps(_pending(self.manifest(), targets))

    @contextmanager
    def fresh_version(self, targets: Iterable[str] = ()) -> Iterator[tuple[str, Path]]:
        """Name and folder of a new version, which is removed at the end unless the manifest names it.

        The commit of an earlier run is finished first, see `finish_commit`.

        Raises:
            RunError: Another run of the stage is under way.
        """
        with self._locked(_WAIT_S):
            with suppress(ResultError):  # an unreadable manifest names no version
                finish_swaps(_pending(self.manifest(), targets))
            version = f"{time.strftime(_TIME, time.gmtime())}-{secrets.token_hex(4)}"
            try:
                yield version, self.root / version
            finally:
                self._remove_unused()

    @contextmanager
    def _locked(self, wait_s: float = 0.0) -> Iterator[None]:
        """Hold the stage's lock file, which is free again however this process ends."""
        path = self.root / ".lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        from filelock import FileLock, Timeout  # noqa: PLC0415 - a plan only reads

        lock = FileLock(path)
        try:
            lock.acquire(timeout=wait_s)
        except Timeout as error:
            msg = (
                f"stage {self.stage!r} is being run by another process: two would write the same result; "
                f"wait for it, or stop it (lock {path})"
            )
            raise RunError(msg) from error
        try:
            yield
        finally:
            lock.release()

    def pin(self, reader: str, version: str) -> None:
        """Keep a version as long as a reader's checkpoint needs it."""
        pins = self.root / "pins"
        pins.mkdir(exist_ok=True)
        part = self.root / f".pin-{reader}"
        part.write_text(version)
        part.replace(pins / reader)

    def unpin(self, reader: str) -> None:
        """Forget the version of a reader."""
        (self.root / "pins" / reader).unlink(missing_ok=True)

    def remove_unused(self) -> None:
        """Remove versions that are neither committed nor pinned; a stage that runs does so itself."""
        with suppress(RunError), self._locked():
            self._remove_unused()

    def _needed_pins(self, pins: Path) -> list[Path]:
        """The pins without those of queries whose plan file is gone, so that they begin anew.

        Until a first start has written plan file and pin, there is the pin of the next version. Without any
        plan file the folder of the checkpoints may only be away.
        """
        found = [*pins.iterdir()] if pins.is_dir() else []
        starting = {pin.name.removeprefix(NEXT) for pin in found if pin.name.startswith(NEXT)}
        files = (self.root.parent.parent / "checkpoints").glob("*.plan.json")  # after the pins
        known = {file.name.removesuffix(".plan.json") for file in files}
        needed = known | starting
        return [pin for pin in found if not known or pin.name.removeprefix(NEXT) in needed]

    def _remove_unused(self) -> None:
        try:
            current = self.manifest()
        except ResultError:  # the version in use is unknown until the next commit
            return
        pins = self.root / "pins"
        keep = {current.version} if current else set()
        for pin in self._needed_pins(pins):
            with suppress(FileNotFoundError):  # removed in this moment
                keep.add(pin.read_text())
        for path in self.root.iterdir():
            if path.is_dir() and path != pins and path.name not in keep:
                shutil.rmtree(path, ignore_errors=True)
            elif path.name.startswith(f".{self.manifest_path.name}."):  # of a killed run
                path.unlink()


@dataclass(frozen=True, slots=True)
class ResultStore:
    """The results of one flow below ``state_dir``."""

    state_dir: Path
    flow: str

    def folder(self, stage: str) -> StageFolder:
        """The folder of one stage's results."""
        return StageFolder(self.state_dir.absolute() / self.flow / "results" / stage, stage)

    def table_bytes(self, stages: Iterable[str]) -> dict[str, int]:
        """The sizes of the committed tables of stages, by name, as far as manifests can be read."""
        found: dict[str, int] = {}
        for stage in stages:
            with suppress(ResultError, OSError):
                manifest = self.folder(stage).manifest()
                found |= {name: table.bytes for name, table in manifest.tables.items()} if manifest else {}
        return found

    def require(self, stage: str, version: str | None = None) -> Manifest:
        """The committed and checked result of a stage, or an earlier version of it.

        Raises:
            ResultError: There is no result, or its files have changed since the commit.
        """
        folder = self.folder(stage)
        manifest = folder.manifest(version)
        if manifest is None:
            msg = (
                f"stage {stage!r} of flow {self.flow!r} has no committed result {version or ''} in "
                f"{folder.root}: the stream would join nothing; run the bounded stage first"
            )
            raise ResultError(msg)
        manifest.check(folder.root)
        return manifest


def results_of(context: Context) -> ResultStore:
    """The committed results of the flow that runs."""
    return ResultStore(context.settings.state_dir, context.flow)


def _pending(manifest: Manifest | None, targets: Iterable[str]) -> list[Swap]:
    swaps = [Swap.of(target, manifest.version) for target in targets] if manifest else []
    return [swap for swap in swaps if swap.pending]
