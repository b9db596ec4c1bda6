"""Results: where do bounded stages leave their tables, and who may see which version?

Under ``<state.dir>/<flow>/results/<stage>``: ``manifest.json`` and a folder for each version. A
version is invisible until the manifest names it. One run of a stage at a time holds the stage's
lock; what a killed run left is removed by the next. An older version is removed when no live
query's checkpoint was started with it.
"""

from __future__ import annotations

import calendar
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from flowcore.errors import ResultError, RunError
from flowcore.spark.checkpoint.lock import exclusive
from flowcore.spark.context import Context
from flowcore.spark.results.manifest import Manifest
from flowcore.spark.results.swaps import Swap, finish

__all__ = ["ResultStore", "StageFolder", "results_of", "version_time_s"]

_TIME = "%Y%m%dT%H%M%S"


def version_time_s(version: str) -> float:
    """When the run of a stage began that made a version, in seconds since the epoch.

    Raises:
        ValueError: It is the name of no version.

    >>> version_time_s("19700101T000010-0a1b2c3d")
    10.0
    """
    return float(calendar.timegm(time.strptime(version.partition("-")[0], _TIME)))


@dataclass(frozen=True, slots=True)
class StageFolder:
    """The place of one stage's results."""

    root: Path
    stage: str

    @property
    def manifest_path(self) -> Path:
        """The file that makes a version visible."""
        return self.root / "manifest.json"

    def manifest(self) -> Manifest | None:
        """The committed result, None if there is none yet."""
        return Manifest.read(self.manifest_path) if self.manifest_path.exists() else None

    def finish_commit(self) -> None:
        """Move the sinks of a run that was killed between its commit and the moving of the last of them.

        Raises:
            RunError: Another run of the stage is under way.
        """
        if _pending(self.manifest()):
            with self._locked():
                finish(_pending(self.manifest()))

    @contextmanager
    def fresh_version(self) -> Iterator[tuple[str, Path]]:
        """Name and folder of a new version; removed again unless a manifest names it at the end.

        Raises:
            RunError: Another run of the stage is under way.
        """
        with self._locked():
            with suppress(ResultError):  # of a manifest that cannot be read nothing can be finished
                finish(_pending(self.manifest()))
            version = f"{time.strftime(_TIME, time.gmtime())}-{secrets.token_hex(4)}"
            try:
                yield version, self.root / version
            finally:
                self._remove_unused()

    def _locked(self) -> AbstractContextManager[None]:
        refusal = (
            f"stage {self.stage!r} is being run by another process: two would write the same result; wait "
            "for it, or stop it"
        )
        return exclusive(self.root / ".lock", refusal)

    def pin(self, reader: str, version: str) -> None:
        """Keep a version for as long as a reader's checkpoint stands on it."""
        pins = self.root / "pins"
        pins.mkdir(exist_ok=True)
        part = self.root / f".pin-{reader}"
        part.write_text(version)
        part.replace(pins / reader)

    def unpin(self, reader: str) -> None:
        """A reader needs no version any more."""
        (self.root / "pins" / reader).unlink(missing_ok=True)

    def remove_unused(self) -> None:
        """Remove versions that are neither committed nor pinned; left to its end while the stage runs."""
        with suppress(RunError), self._locked():
            self._remove_unused()

    def pinned(self, reader: str) -> str | None:
        """The version that a reader's checkpoint stands on."""
        pin = self.root / "pins" / reader
        return pin.read_text() if pin.exists() else None

    def _remove_unused(self) -> None:
        try:
            current = self.manifest()
        except ResultError:  # which version is in use cannot be told; the next commit tells it
            return
        pins = self.root / "pins"
        keep = set()
        for pin in pins.iterdir() if pins.is_dir() else ():
            with suppress(FileNotFoundError):  # it was taken away just now
                keep.add(pin.read_text())
        keep |= {current.version} if current else set()
        for path in self.root.iterdir():
            if path.is_dir() and path != pins and path.name not in keep:
                shutil.rmtree(path, ignore_errors=True)
            elif path.name.startswith(f".{self.manifest_path.name}."):  # of a run killed while it committed
                path.unlink()


@dataclass(frozen=True, slots=True)
class ResultStore:
    """The results of one flow below ``state_dir``."""

    state_dir: Path
    flow: str

    def folder(self, stage: str) -> StageFolder:
        """The place of one stage's results."""
        return StageFolder(self.state_dir.absolute() / self.flow / "results" / stage, stage)

    def require(self, stage: str) -> Manifest:
        """The committed and checked result of a stage.

        Raises:
            ResultError: There is none, or its files are not what was committed.
        """
        folder = self.folder(stage)
        manifest = folder.manifest()
        if manifest is None:
            msg = (
                f"stage {stage!r} of flow {self.flow!r} has no committed result in {folder.root}: the stream "
                "would join nothing; run the bounded stage first"
            )
            raise ResultError(msg)
        manifest.check(folder.root)
        return manifest


def results_of(context: Context) -> ResultStore:
    """The committed results of the flow that runs."""
    return ResultStore(context.settings.state_dir, context.flow)


def _pending(manifest: Manifest | None) -> list[Swap]:
    return [swap for swap in manifest.swaps if swap.pending] if manifest else []
