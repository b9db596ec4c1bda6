"""Read the state in a checkpoint while no query runs on it.

State by key group is read through Spark's state data source and decoded by `flowcore.keyed.inspection`. State
of Spark's own operators is returned as Spark shows it.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from flowcore.errors import StateError
from flowcore.keyed.inspection import InspectedGroup, inspect_state
from flowcore.keyed.manifest import StateManifest
from flowcore.keyed.store import read_manifests
from flowcore.spark.operators.processor import MANIFESTS, SEGMENTS

__all__ = [
    "KeyGroupState", "NativeState", "StateDigest", "StoredBytes", "digest_state", "read_event_time",
    "read_state", "read_stored_groups",
]  # fmt: skip

_TOGETHER_BYTES = 64 << 20
"""The driver holds the segments of so many key groups at once."""
StoredBytes = tuple[bytes, Mapping[tuple[str, int], bytes]]
"""The manifests of a key group, and its segments by operator and number."""


@dataclass(frozen=True, slots=True)
class KeyGroupState:
    """The state of one operator in a key group."""

    number: int
    held: InspectedGroup


@dataclass(frozen=True, slots=True)
class NativeState:
    """The state that one of Spark's operators keeps for one key."""

    operator: str
    store: str
    key: Mapping[str, Any]
    value: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StateDigest:
    """The size of a checkpoint's state, and a checksum that does not depend on the order of its rows."""

    operators: int
    rows: int
    checksum: int


def read_state(spark: SparkSession, checkpoint: Path) -> Iterator[KeyGroupState | NativeState]:
    """Read the state of a checkpoint as of its last committed batch, one key group after the other.

    The session needs the configuration of live queries.

    Raises:
        StateError: The checkpoint cannot be read.
    """
    with _readable(checkpoint):
        for operator in _operators(spark, checkpoint):
            if operator.operatorName.startswith("transformWithState"):
                yield from _key_groups(spark, checkpoint, operator.operatorId)
            else:
                yield from _native(spark, checkpoint, operator)


def read_event_time(spark: SparkSession, checkpoint: Path) -> dict[str, Any]:
    """By input of its operators by key group, the watermarks, which are the same in all key groups.

    Raises:
        StateError: The checkpoint cannot be read.
    """
    found: dict[str, Any] = {}
    with _readable(checkpoint):
        for operator in _operators(spark, checkpoint):
            if operator.operatorName.startswith("transformWithState"):
                stored = _read(spark, checkpoint, operator.operatorId, stateVarName=MANIFESTS)
                for row in stored.selectExpr("value.content AS manifests").limit(1).collect():
                    for manifest in read_manifests(bytes(row.manifests)).values():
                        found |= StateManifest.read(manifest).event_time.get("sources", {})
    return found


def read_stored_groups(spark: SparkSession, checkpoint: Path) -> list[dict[int, StoredBytes]]:
    """The manifests and segments of each key group, for each exchange of a query in order.

    Raises:
        StateError: The checkpoint cannot be read, or Spark's own operators keep state in it.
    """
    with _readable(checkpoint):
        # Spark numbers the operators of a query from its sink on.
        operators = sorted(_operators(spark, checkpoint), key=lambda each: -each.operatorId)
        if any(not each.operatorName.startswith("transformWithState") for each in operators):
            return []
        return [dict(_stored_groups(spark, checkpoint, each.operatorId)) for each in operators]


def digest_state(spark: SparkSession, checkpoint: Path) -> StateDigest:
    """Digest the whole state of a checkpoint; the session needs the configuration of live queries.

    Raises:
        StateError: The checkpoint cannot be read.
    """
    with _readable(checkpoint):
        rows = checksum = 0
        operators = _operators(spark, checkpoint)
        for operator in operators:
            if operator.operatorName.startswith("transformWithState"):
                stores = [{"stateVarName": name} for name in (MANIFESTS, SEGMENTS)]
            else:
                stores = [{"storeName": operator.stateStoreName}]
            for options in stores:
                frame = _read(spark, checkpoint, operator.operatorId, **options)
                columns = ", ".join(name for name in frame.columns if name != "partition_id")
                # With the operator, since equal rows of two operators would cancel each other.
                parts = f"{operator.operatorId}, '{next(iter(options.values()))}', to_json(struct({columns}))"
                hashed = f"xxhash64({parts})"
                ((count, total),) = frame.selectExpr("count(*)", f"bit_xor({hashed})").collect()
                rows, checksum = rows + count, checksum ^ (total or 0)
        return StateDigest(len(operators), rows, checksum)


def _operators(spark: SparkSession, checkpoint: Path) -> list[Row]:
    return spark.read.format("state-metadata").load(str(checkpoint)).collect()


@contextmanager
def _readable(checkpoint: Path) -> Iterator[None]:
    try:
        yield
    except PySparkException as error:
        reason = str(error).splitlines()[0]
        msg = (
            f"the checkpoint {checkpoint} cannot be read: {reason}; check that a query on it has committed a "
            "batch, and that this version of Spark has written it"
        )
        raise StateError(msg) from error


def _key_groups(spark: SparkSession, checkpoint: Path, operator: int) -> Iterator[KeyGroupState]:
    for number, (manifests, content) in _stored_groups(spark, checkpoint, operator):
        for held in inspect_state(manifests, content):
            yield KeyGroupState(number, held)


def _stored_groups(spark: SparkSession, checkpoint: Path, operator: int) -> Iterator[tuple[int, StoredBytes]]:
    """The stored bytes of each key group. One job reads several small ones; a large one is read alone."""
    manifests = _read(spark, checkpoint, operator, stateVarName=MANIFESTS)
    segments = _read(spark, checkpoint, operator, stateVarName=SEGMENTS)
    rows = manifests.selectExpr("key.key_group", "value.content AS manifests").collect()
    known = {row.key_group: bytes(row.manifests) for row in rows}
    for groups in _read_together({group: _size_bytes(known[group]) for group in sorted(known)}):
        found: dict[int, dict[tuple[str, int], bytes]] = {group: {} for group in groups}
        mine = segments.where(f"key.key_group IN ({', '.join(map(str, groups))})")
        for each in mine.selectExpr("key.key_group", "user_map_key.*", "user_map_value.content").collect():
            found[each.key_group][each.operator, each.number] = bytes(each.content)
        for group in groups:
            yield group, (known[group], found.pop(group))


def _size_bytes(manifests: bytes) -> int:
    """The bytes of a key group's segments."""
    found = map(StateManifest.read, read_manifests(manifests).values())
    return sum(each.snapshot_bytes + each.delta_bytes for each in found)


def _read_together(sizes: Mapping[int, int]) -> Iterator[list[int]]:
    """The key groups in their order, as many at once as have `_TOGETHER_BYTES`, and at least one."""
    together: list[int] = []
    total = 0
    for group, size in sizes.items():
        if together and total + size > _TOGETHER_BYTES:
            yield together
            together, total = [], 0
        together.append(group)
        total += size
    if together:
        yield together


def _native(spark: SparkSession, checkpoint: Path, operator: Any) -> Iterator[NativeState]:
    frame = _read(spark, checkpoint, operator.operatorId, storeName=operator.stateStoreName)
    for text in frame.selectExpr("to_json(struct(key, value)) AS text").toLocalIterator():
        row = json.loads(text.text)
        yield NativeState(
            operator.operatorName, operator.stateStoreName, row.get("key", {}), row.get("value", {})
        )


def _read(spark: SparkSession, checkpoint: Path, operator: int, **options: str) -> DataFrame:
    reader = spark.read.format("statestore").option("operatorId", operator).options(**options)
    return reader.load(str(checkpoint))
