"""Python finds the key groups that Spark finds, so that state stays where it is."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from flowcore.keyed.key_group_hash import key_groups_of, spark_hash

pytestmark = pytest.mark.spark

SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 100, 255, 256, 257, 1_000, 5_001]


def _rows(count: int) -> list[tuple[object, ...]]:
    chance = random.Random(1)  # noqa: S311 - rows for a test

    def text() -> str:
        return "".join(chance.choices("ab\x00~ż€😀", k=chance.choice(SIZES)))

    def some(value: object) -> object:
        return None if chance.random() < 0.2 else value

    return [
        (
            some(chance.choice([chance.randrange(-(2**63), 2**63), -1, 0, 2**63 - 1])),
            some(chance.randrange(-(2**31), 2**31)),
            some(chance.random() < 0.5),
            some(text()),
            chance.randrange(-128, 128),
            some(text().encode()),
        )
        for _ in range(count)
    ]


def test_hash_is_that_of_spark(spark: SparkSession) -> None:
    """Of each type, of several columns in any order, with nulls, and of a slice."""
    ddl = "a BIGINT, b INT, c BOOLEAN, d STRING, e TINYINT, f BINARY"
    keys = ["a", "b", "c", "d", "e", "f", "abcdef", "fd", "eb"]
    frame = spark.createDataFrame(_rows(1_000), ddl).selectExpr(
        "*",
        *(f"hash({', '.join(key)}) AS hash_{key}" for key in keys),
        "CAST(pmod(hash(d, a), 48) AS INT) AS key_group",
    )

    (rows,) = pa.Table.from_batches(frame.toArrow().to_batches()).combine_chunks().to_batches()

    for part in (rows, rows.slice(300, 200)):
        for key in keys:
            found = spark_hash([part.column(name) for name in key]).tolist()
            assert found == part.column(f"hash_{key}").to_pylist(), key
        groups = key_groups_of([part.column("d"), part.column("a")], part.num_rows, 48)
        assert groups.tolist() == part.column("key_group").to_pylist()
