"""Key groups of keys: values of Spark 4.3, which `tests/spark/test_spark_hash.py` compares at random."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flowcore.keyed.key_group_hash import key_groups_of, spark_hash

GOLDEN: dict[str, tuple[pa.Array[Any], list[int]]] = {
    "bigint": (
        pa.array([1, -1, None, 2**63 - 1], pa.int64()), [-1712319331, -939490007, 42, -1604625029],
    ),
    "int": (pa.array([7], pa.int32()), [1079293707]),
    "tinyint": (pa.array([7], pa.int8()), [1079293707]),
    "boolean": (pa.array([True]), [-559580957]),
    "string": (
        pa.array(["", "a", "flink", "żółć", "abcde" * 100]),
        [142593372, 1485273170, -1901978243, 1585930290, 1932740912],
    ),
    "binary": (pa.array([b"\x00\xff"]), [1246198977]),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_hash_is_that_of_spark(name: str) -> None:
    """For each type of key."""
    column, expected = GOLDEN[name]

    assert spark_hash([column]).tolist() == expected


def test_null_leaves_the_hash_of_the_columns_before_it() -> None:
    """As Spark's hash of several columns."""
    key = [pa.array([1], pa.int64()), pa.array(["a"]), pa.nulls(1, pa.int32())]

    assert spark_hash(key).tolist() == spark_hash(key[:2]).tolist() == [573093329]


def test_text_has_the_same_hash_alone_and_among_others() -> None:
    """Most texts are hashed together, word by word; the longest ones to their ends."""
    texts = ["x" * (place % 40) for place in range(300)] + ["y" * size for size in range(1_000, 1_010)]

    together = spark_hash([pa.array(texts)])

    assert together.tolist() == [spark_hash([pa.array([text])])[0] for text in texts]
    assert len({*together.tolist()}) == 50


def test_key_group_is_never_negative() -> None:
    """All key groups are used, and there is one without key."""
    groups = key_groups_of([pa.array(np.arange(1_000))], 1_000, 16)

    assert {*groups.tolist()} == {*range(16)}
    assert key_groups_of([], 3, 16).tolist() == [0, 0, 0]
