"""Distribute the state in a checkpoint over another number of key groups while no query runs on it.

The new state is written as one more batch, which reads nothing from the sources: in a copy of the checkpoint,
whose files are links. When all of it has been read again and compared, the new files are added to the
checkpoint, and the commit of the batch last. Until then the next start continues with the state as it was.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from flowcore.errors import StateError
from flowcore.keyed.content import StoredSchemas
from flowcore.keyed.key_index import Ints
from flowcore.keyed.manifest import StateManifest
from flowcore.keyed.regrouping import ContentDigest, RegroupedState, StoredGroup, regroup_state
from flowcore.keyed.store import read_manifests, write_manifests
from flowcore.spark.checkpoint.lease import Leases
from flowcore.spark.checkpoint.offset_log import (
    committed_batches,
    has_unfinished_batch,
    planned_batches,
    replace_file,
)
from flowcore.spark.checkpoint.plan_file import move_to_key_groups, read_schemas, skip_ledger_batch
from flowcore.spark.checkpoint.repartitioning import copy_of
from flowcore.spark.checkpoint.storage import WATERMARKS
from flowcore.spark.frame.sql import quote
from flowcore.spark.operators.keys import key_group_text
from flowcore.spark.operators.state_writer import NEW_STATE, write_state
from flowcore.spark.run.inspection import read_stored_groups

__all__ = ["regroup_checkpoint"]

_Exchange = Mapping[str, Mapping[int, StoredGroup]]
"""The state of an exchange: by operator, by key group."""
_TYPES: Sequence[tuple[str, pa.DataType]] = (
    ("depth", pa.int32()),
    ("key_group", pa.int32()),
    ("operator", pa.string()),
    ("number", pa.int64()),
    ("content", pa.binary()),
)
"""The columns of `NEW_STATE`."""


def regroup_checkpoint(spark: SparkSession, checkpoint: Path, key_groups: int) -> ContentDigest | None:
    """Distribute the state of a checkpoint over another number of key groups.

    The state of one query must fit into the memory of this process.

    Args:
        spark: A session with the configuration of live queries.
        checkpoint: The folder.
        key_groups: The number of key groups, above 0.

    Returns:
        The digest of the state by key, which is the same before and after; None if there are that many key
        groups already, or if the query has none.

    Raises:
        RunError: A query runs on the checkpoint, or has begun meanwhile.
        StateError: The state cannot be read or divided, or differs afterwards; the checkpoint is as before.
    """
    with Leases() as leases:
        leases.take(checkpoint)
        before = _read(spark, checkpoint)
        found = {
            group.manifest.key_groups
            for each in before
            for state in each.values()
            for group in state.values()
        }
        if not found:
            return None
        if found == {key_groups}:
            _follow(checkpoint, key_groups)  # an interrupted call may not have come so far
            return None
        if has_unfinished_batch(checkpoint):
            msg = (
                f"the last batch of {checkpoint} was not committed: its state would be of another batch than "
                "its offsets; run the flow in mode slice, and then this again"
            )
            raise StateError(msg)
        schemas = read_schemas(checkpoint)
        old = max(found)
        after = _regroup(before, schemas, _assign_by(spark), key_groups)
        with _copy(checkpoint) as copy:
            _write_batch(spark, copy, checkpoint, _rows(after, key_groups, old), len(after))
            digests = [_digest(each, schemas) for each in (before, _read(spark, copy))]
            if digests[0] != digests[1]:
                msg = (
                    f"the state in {checkpoint} was distributed over {key_groups} key groups, and differs: "
                    f"it was {digests[0]}, and is {digests[1]}; the checkpoint is as before; keep {old} "
                    "key groups"
                )
                raise StateError(msg)
            leases.require()
            _adopt(copy, checkpoint)
        _follow(checkpoint, key_groups)
        return digests[0]


def _read(spark: SparkSession, checkpoint: Path) -> list[_Exchange]:
    """The stored state of each exchange, in order."""
    exchanges: list[_Exchange] = []
    for groups in read_stored_groups(spark, checkpoint):
        exchange: dict[str, dict[int, StoredGroup]] = {}
        for number, (manifests, content) in groups.items():
            for name, written in read_manifests(manifests).items():
                manifest = StateManifest.read(written)
                pieces = [content[name, each.segment] for each in (*manifest.snapshot, *manifest.deltas)]
                exchange.setdefault(name, {})[number] = StoredGroup(manifest, pieces)
        exchanges.append(exchange)
    return exchanges


def _regroup(
    exchanges: list[_Exchange],
    schemas: Mapping[str, StoredSchemas],
    assign: Callable[[pa.RecordBatch, int], Ints],
    key_groups: int,
) -> list[dict[str, RegroupedState]]:
    done: dict[str, RegroupedState] = {}
    after = []
    for exchange in exchanges:
        moved = {
            name: regroup_state(groups, schemas[name], assign, key_groups, done)
            for name, groups in exchange.items()
        }
        done |= moved
        after.append(moved)
    return after


def _digest(exchanges: list[_Exchange], schemas: Mapping[str, StoredSchemas]) -> ContentDigest:
    digest = ContentDigest()
    for depth, exchange in enumerate(exchanges):
        for name, groups in exchange.items():
            for group in groups.values():
                digest.add(f"{depth}/{name}", group.read(schemas[name]))
    return digest


def _assign_by(spark: SparkSession) -> Callable[[pa.RecordBatch, int], Ints]:
    """The key groups of keys, computed as the query does."""

    def assign(keys: pa.RecordBatch, key_groups: int) -> Ints:
        if keys.schema.names == [""] or not keys.num_rows:
            return np.zeros(keys.num_rows, np.int64)
        names = [f"k{number}" for number in range(keys.num_columns)]
        columns = [*keys.columns, pa.array(np.arange(keys.num_rows))]
        frame = spark.createDataFrame(pa.Table.from_arrays(columns, [*names, "row"]))
        text = key_group_text([quote(name) for name in names], key_groups)
        found = frame.selectExpr("row", f"{text} AS key_group").toArrow().sort_by("row")
        return found.column("key_group").to_numpy().astype(np.int64)

    return assign


def _rows(after: list[dict[str, RegroupedState]], key_groups: int, old: int) -> Iterator[tuple[Any, ...]]:
    """The rows of the new state, and for each key group that is gone one that removes it."""
    for depth, exchange in enumerate(after, 1):
        for number in range(max(key_groups, old)):
            groups = {name: state.groups[number] for name, state in exchange.items() if number < key_groups}
            manifests = {name: group.manifest.encode() for name, group in groups.items()}
            yield depth, number, "", -1, write_manifests(manifests) if groups else None
            for name, group in groups.items():
                yield from ((depth, number, name, place, piece) for place, piece in enumerate(group.pieces))


@contextmanager
def _copy(checkpoint: Path) -> Iterator[Path]:
    """A copy of a checkpoint, whose files are links."""
    copy = copy_of(checkpoint)
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(checkpoint, copy, copy_function=os.link)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


def _write_batch(
    spark: SparkSession, copy: Path, checkpoint: Path, rows: Iterator[tuple[Any, ...]], depth: int
) -> None:
    """Write new state as the next batch of a copy; its only source has the rows of the state."""
    shutil.rmtree(copy / "sources", ignore_errors=True)
    for number in sorted(planned_batches(checkpoint))[-2:]:  # Spark reads the last one and the one before it
        version, metadata, *_ = (checkpoint / "offsets" / str(number)).read_text().splitlines()
        replace_file(copy / "offsets" / str(number), f"{version}\n{metadata}\n-")
    folder = copy / "new-state"
    folder.mkdir()
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, kind) for values, (_, kind) in zip(columns, _TYPES, strict=True)]
    pq.write_table(pa.Table.from_arrays(arrays, [name for name, _ in _TYPES]), folder / "state.parquet")
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    written = write_state(spark.readStream.schema(NEW_STATE).parquet(str(folder)), depth)
    query = (
        written.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(copy))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _adopt(copy: Path, checkpoint: Path) -> None:
    """Add the batch of a copy to the checkpoint; it counts from its commit on, which is the last file."""
    number = max(planned_batches(copy))
    for source in sorted((copy / "state").rglob("*")):
        target = checkpoint / source.relative_to(copy)
        # The schema of the state is as before; the copy's has the copy's folder in it.
        if source.is_dir() or target.exists() or {"_metadata", "_stateSchema"} & {*source.parts}:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(source, target)
    before = (checkpoint / "offsets" / str(number - 1)).read_text().splitlines()
    version, metadata, *_ = (copy / "offsets" / str(number)).read_text().splitlines()
    replace_file(checkpoint / "offsets" / str(number), "\n".join((version, metadata, *before[2:])))
    _commit(checkpoint / "commits" / str(number), (copy / "commits" / str(number)).read_text())


def _follow(checkpoint: Path, key_groups: int) -> None:
    """Write the number of key groups to the files that do not belong to Spark.

    The plan file, which lets the flow start with this number, is the last one: a call that was interrupted
    has to be repeated first.
    """
    skip_ledger_batch(checkpoint)
    path = checkpoint / WATERMARKS
    kept = json.loads(path.read_text()) if path.exists() else {}
    if "batch" in kept:  # the batch with the new key groups has no control elements
        kept["batch"] = max(committed_batches(checkpoint))
    if kept.get("key_groups"):
        reports: dict[str, list[dict[str, Any]]] = {}
        for name, report in kept["key_groups"].items():
            reports.setdefault(name.rsplit("/", 1)[0], []).append(report)
        kept["key_groups"] = {
            f"{name}/{number}": {
                "watermark_ms": min(each["watermark_ms"] for each in found),
                "idle": all(each.get("idle", False) for each in found),
            }
            for name, found in reports.items()
            for number in range(key_groups)
        }
    if kept:
        replace_file(path, json.dumps(kept))
    move_to_key_groups(checkpoint, key_groups)


def _commit(path: Path, text: str) -> None:
    """Write the file from which on the new state counts."""
    replace_file(path, text)
