"""What the queries of `flowcore bench scale` hold and touch is what a point says."""

from __future__ import annotations

from contextlib import suppress

import duckdb
import numpy as np
import pytest

from tests.benchmarks._scaled_query import TOUCHED, held_text, touch_keys
from tests.benchmarks.scale import DIMENSIONS

_RECORDS, _BATCHES = 20_000, 4


@pytest.mark.parametrize("megabytes", DIMENSIONS["state-mb"][1].values)
def test_held_texts_have_the_size_of_the_point(megabytes: int) -> None:
    """Texts of all keys are as many megabytes together, and those of two keys differ."""
    base, dimension = DIMENSIONS["state-mb"]
    scale = dimension.scaled(base, megabytes)
    text = held_text(scale.value_bytes).replace("transform(", "list_transform(")  # DuckDB's name

    with duckdb.connect() as database:
        with suppress(duckdb.Error):  # a version before 1.3 has no other syntax, and no setting
            database.execute("SET lambda_syntax = 'ENABLE_SINGLE_ARROW'")
        database.execute("CREATE MACRO sha2(text, bits) AS sha256(text) || sha256(text || text)")
        database.execute("CREATE MACRO sequence(a, b) AS range(a, b + 1)")
        database.execute("CREATE MACRO concat_ws(between, texts) AS array_to_string(texts, between)")
        rows = database.execute(f"SELECT {text} FROM range(2) t(auction_id)").fetchall()  # noqa: S608

    lengths = {len(row) for (row,) in rows}
    assert {length * scale.keys for length in lengths} == {megabytes * 1_000_000}
    assert len({row for (row,) in rows}) == 2


@pytest.mark.parametrize("held", DIMENSIONS["keys"][1].values)
def test_batch_touches_as_many_keys_however_many_are_held(held: int) -> None:
    """So the cost of a batch grows with the keys held, or does not, and not with those it touches."""
    keys = touch_keys(held, _RECORDS, _BATCHES)
    partition = keys[keys % 2 == 0]  # Spark divides the records of each partition into batches

    assert len(keys) == _BATCHES * _RECORDS
    assert {len(np.unique(each)) for each in np.split(keys, _BATCHES)} == {TOUCHED}
    for start in range(0, len(partition) - _RECORDS // 2, 777):
        touched = len(np.unique(partition[start : start + _RECORDS // 2]))
        assert 0.9 * TOUCHED / 2 <= touched <= 1.1 * TOUCHED / 2
    assert np.histogram(keys, bins=4, range=(0, held))[0].min() > 0.2 * len(keys)


def test_few_records_touch_one_key_each() -> None:
    """At the smallest size a batch has fewer records than keys to touch."""
    assert len(np.unique(touch_keys(10_000, 300, 1))) == 300
