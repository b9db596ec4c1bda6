"""Writer of the past persons, auctions and bids as Parquet files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from flowcore.errors import ConfigurationError
from pipelines.nexmark.generator import NexmarkConfig, auctions, bids, kinds, persons

__all__ = ["write_history"]

ROWS_PER_FILE: Final = 500_000
ROWS_PER_GROUP: Final = 125_000
GENERATOR_VERSION: Final = 1  # increase it if a configuration gives other rows than before
MARKER: Final = "_generated_from.json"  # Spark and Arrow ignore names that begin with _

Progress = Callable[[str, int, int], None]


def write_history(
    config: NexmarkConfig,
    events: int,
    folder: Path,
    on_progress: Progress = lambda _table, _done, _total: None,
) -> dict[str, int]:
    """Write events 0 to ``events - 1`` as Parquet: ``persons``, ``auctions``, ``bids``.

    Each table is a folder, which is created atomically. A folder that already holds exactly these rows is
    kept.

    Args:
        config: Configuration of the generator.
        events: Number of events of all kinds.
        folder: Folder of the three tables; created if missing.
        on_progress: Called with a table's name, its written rows, and all its rows.

    Returns:
        Number of rows of each table.

    Raises:
        ConfigurationError: A folder holds other files, which would be deleted.
    """
    origin = {"version": GENERATOR_VERSION, "events": events, "config": asdict(config)}
    generators = {"persons": persons, "auctions": auctions, "bids": bids}
    for name, kind in kinds(config).items():
        rows = kind.before(events)
        if not _holds(folder / name, origin):
            step = max(ROWS_PER_FILE // kind.proportion, 1) * kind.cycle
            tables = (
                generators[name](config, start, min(start + step, events))
                for start in range(0, max(events, 1), step)
            )
            _write_table(folder / name, tables, origin, partial(on_progress, name), rows)
    return {name: kind.before(events) for name, kind in kinds(config).items()}


def _holds(folder: Path, origin: dict[str, Any]) -> bool:
    marker = folder / MARKER
    if marker.is_file():
        return bool(json.loads(marker.read_text()) == origin)
    if folder.exists() and any(folder.iterdir()):
        msg = (
            f"{folder} holds files that this generator did not write: they would be deleted; "
            "pass another folder, or remove it yourself"
        )
        raise ConfigurationError(msg)
    return False


def _write_table(
    folder: Path,
    tables: Iterator[pa.Table],
    origin: dict[str, Any],
    on_rows: Callable[[int, int], None],
    rows: int,
) -> None:
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    written = 0
    for number, table in enumerate(tables):
        path = unfinished / f"part-{number:05}.parquet"
        pq.write_table(table, path, compression="zstd", row_group_size=ROWS_PER_GROUP)
        written += table.num_rows
        on_rows(written, rows)
    (unfinished / MARKER).write_text(json.dumps(origin, indent=2) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.replace(folder)
