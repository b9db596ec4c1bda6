"""Inspection: what does a checkpoint hold, while no query runs on it?

State by key group is read through Spark's state data source and decoded by `flowcore.keyed.inspection`;
what Spark's own operators keep is shown as Spark shows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from flowcore.errors import StateError
from flowcore.keyed.inspection import GroupState, inspect_state
from flowcore.spark.operators.processor import MANIFEST, SEGMENTS

__all__ = ["KeyGroupState", "NativeState", "state_of"]


@dataclass(frozen=True, slots=True)
class KeyGroupState:
    """A key group with state.

    Attributes:
        number: Its number.
        held: What it holds.
    """

    number: int
    held: GroupState


@dataclass(frozen=True, slots=True)
class NativeState:
    """What an operator of Spark's keeps of one key.

    Attributes:
        operator: As Spark calls it.
        store: Which of its stores.
        key: By column.
        value: By column.
    """

    operator: str
    store: str
    key: Mapping[str, Any]
    value: Mapping[str, Any]


def state_of(spark: SparkSession, checkpoint: Path) -> Iterator[KeyGroupState | NativeState]:
    """All state of a checkpoint as of its last committed batch, key group by key group.

    Args:
        spark: A session with the configuration of live queries.
        checkpoint: The checkpoint's folder.

    Raises:
        StateError: It cannot be read.
    """
    try:
        operators = spark.read.format("state-metadata").load(str(checkpoint)).collect()
        for operator in operators:
            if operator.operatorName.startswith("transformWithState"):
                yield from _key_groups(spark, checkpoint, operator.operatorId)
            else:
                yield from _native(spark, checkpoint, operator)
    except PySparkException as error:
        said = str(error).splitlines()[0]
        msg = (
            f"the checkpoint {checkpoint} cannot be read: {said}; has a query on it committed a batch, and "
            "is it one of this version of Spark?"
        )
        raise StateError(msg) from error


def _key_groups(spark: SparkSession, checkpoint: Path, operator: int) -> Iterator[KeyGroupState]:
    manifests = _read(spark, checkpoint, operator, stateVarName=MANIFEST)
    segments = _read(spark, checkpoint, operator, stateVarName=SEGMENTS)
    for row in manifests.selectExpr("key.*", "value.content AS manifest").orderBy("key_group").collect():
        mine = segments.where(f"key.key_group = {row.key_group}")
        found = mine.selectExpr("user_map_key.number", "user_map_value.content").collect()
        content = {each.number: bytes(each.content) for each in found}
        yield KeyGroupState(row.key_group, inspect_state(bytes(row.manifest), content))


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
