"""Manifests: the exact result of a bounded stage.

A result is a folder of Parquet files for each table, and a manifest that names the files. Without a manifest
there is no result: it is written last, in one rename. Times are milliseconds since the epoch, UTC.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from flowcore.errors import ResultError
from flowcore.failpoints import failpoint
from flowcore.stored_json import read_json

__all__ = ["DataFile", "Manifest", "Table"]

_FORMAT = 2
_MOST_BYTES = 256 << 20  # a million files
_FORMATS = (1, _FORMAT)  # the first had no swaps


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file; ``path`` is relative to the folder of the manifest."""

    path: str
    bytes: int
    rows: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a result: its files, and the name and Spark type of each column.

    Attributes:
        digest: SHA-256 over the digests of its files.
    """

    files: tuple[DataFile, ...]
    rows: int
    schema: tuple[tuple[str, str], ...]
    digest: str

    @property
    def bytes(self) -> int:
        """The size of its files."""
        return sum(file.bytes for file in self.files)

    @classmethod
    def scan(cls, folder: Path, schema: tuple[tuple[str, str], ...], root: Path) -> Self:
        """Describe the Parquet files of a folder as they are now."""
        import pyarrow.parquet as pq  # noqa: PLC0415 - `flowcore plan` reads manifests, and nothing else

        paths = sorted(folder.glob("*.parquet"))
        with ThreadPoolExecutor(os.cpu_count()) as threads:  # the stage waits for the digests
            digests = tuple(threads.map(sha256_of, paths))
        files = []
        for path, sha256 in zip(paths, digests, strict=True):
            rows = pq.ParquetFile(path).metadata.num_rows
            files.append(DataFile(path.relative_to(root).as_posix(), path.stat().st_size, rows, sha256))
        digest = hashlib.sha256("".join(file.sha256 for file in files).encode()).hexdigest()
        return cls(tuple(files), sum(file.rows for file in files), schema, digest)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The result of a bounded stage, and the versions of its sources.

    Attributes:
        version: Name of the folder of its files; sorts by time.
        fingerprint: Digest of what the stage computes.
        sources: Version of each source (files, offsets); empty text if unknown.
        rejected: Number of bad records by source; they are in the source's dead-letter topic.
    """

    flow: str
    stage: str
    version: str
    created_ms: int
    duration_ms: int
    fingerprint: str
    sources: Mapping[str, str]
    tables: Mapping[str, Table]
    rejected: Mapping[str, int]

    def write(self, path: Path) -> None:
        """Make the whole result visible at once, and durably."""
        part = path.with_name(f".{path.name}.{self.version}")
        with part.open("w") as file:
            json.dump({"format": _FORMAT, **asdict(self)}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        failpoint("manifest-write")
        part.replace(path)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a manifest.

        Raises:
            ResultError: The file is not a manifest, or was written by a later flowcore.
        """
        try:
            found = read_json(path, _MOST_BYTES)
            written = found.pop("format")
            if written not in _FORMATS:
                msg = (
                    f"manifest {path} has format {written}, this flowcore reads up to {_FORMAT}: its files "
                    "would be misread; run the stage again, or use the flowcore that wrote it"
                )
                raise ResultError(msg)
            tables = {name: _table(table) for name, table in found.pop("tables").items()}
            found.pop("swaps", None)  # folders to move, in earlier manifests; now made from the plan
            return cls(tables=tables, **found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            msg = (
                f"manifest {path} cannot be read ({error}): its result is unusable; delete it and run the "
                "stage again"
            )
            raise ResultError(msg) from error

    def check(self, root: Path) -> None:
        """Check that every file is still as it was committed.

        Raises:
            ResultError: A file is missing or has changed; the message names it.
        """
        for file in (file for table in self.tables.values() for file in table.files):
            path = root / file.path
            wrong = None
            if not path.is_file():
                wrong = "is missing"
            elif path.stat().st_size != file.bytes:
                wrong = f"has {path.stat().st_size} bytes, not the {file.bytes} that were committed"
            elif sha256_of(path) != file.sha256:
                wrong = "has other bytes than were committed"
            if wrong:
                msg = (
                    f"result {self.stage!r} of flow {self.flow!r}, version {self.version}: {path} {wrong}: "
                    "a join with it would give wrong answers; run the stage again with --refresh"
                )
                raise ResultError(msg)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal text."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _table(found: dict[str, object]) -> Table:
    files = tuple(DataFile(**file) for file in found.pop("files"))  # type: ignore[attr-defined]
    for file in files:
        if not (type(file.path) is str and type(file.bytes) is int and type(file.rows) is int):
            msg = f"{str(file)[:200]} is not a file"
            raise TypeError(msg)
    schema = tuple((name, kind) for name, kind in found.pop("schema"))  # type: ignore[attr-defined]
    return Table(files=files, schema=schema, **found)  # type: ignore[arg-type]
