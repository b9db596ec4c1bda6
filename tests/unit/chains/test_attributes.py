"""Functions of a chain that ask for the attributes of their records learn of each change, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from flowcore.chains import ChainSpec, ChainTask, Receiver, Step, asks_for_attributes
from flowcore.elements import RecordAttributes
from flowcore.errors import FunctionError
from tests.unit.chains.spied_ops import SCHEMA
from tests.unit.chains.test_passing import OUTPUT, ROWS, _batch, _chain, _step

BACKLOG, LIVE = RecordAttributes(backlog=True), RecordAttributes(backlog=False)


class Hearing:
    """A function that keeps what it hears, in order."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def process_record_attributes(self, attributes: RecordAttributes) -> None:
        self.heard.append(attributes.backlog)

    def __call__(self, record: Any) -> Any:
        self.heard.append(record["n"])
        return record

    def repeat(self, record: Any, times: int = 2) -> Iterator[Any]:
        """A function that is a method."""
        yield from [self(record)] * times

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A function of batches."""
        self.heard.append(batch.column("n").to_pylist())
        return batch


def test_who_asks() -> None:
    """An object with the method does, also through its methods; its class and plain functions do not."""
    hearing = Hearing()
    assert all(map(asks_for_attributes, (hearing, hearing.repeat, partial(hearing.repeat, times=3))))
    assert not any(map(asks_for_attributes, (Hearing, len, partial(len), [].append)))


def test_a_change_is_told_once_to_each_object() -> None:
    """Attributes that are the same again are no change; a batch of several steps has one function."""
    hearing = Hearing()
    second = Step(name="second", kind="map", function=hearing, schema=SCHEMA, outlet=0)
    head = Step(name="first", kind="map", function=hearing, schema=SCHEMA, receivers=(Receiver(second),))
    task = ChainTask(ChainSpec(SCHEMA, head))
    for attributes in (BACKLOG, BACKLOG, LIVE):
        task.attributes(attributes)
    assert hearing.heard == [True, False]


def test_failure_names_the_operator() -> None:
    """No record can be set aside for it, so the query stops."""

    class Failing(Hearing):
        def process_record_attributes(self, attributes: RecordAttributes) -> None:
            msg = f"not {attributes.backlog}"
            raise OSError(msg)

    task = ChainTask(ChainSpec(SCHEMA, Step(name="op", kind="map", function=Failing(), schema=SCHEMA)))
    with pytest.raises(
        FunctionError, match=r"'op'.* OSError: not False .*process_record_attributes"
    ) as raised:
        task.attributes(LIVE)
    assert raised.value.number is None


@pytest.mark.parametrize("kind", ["map", "flat_map", "filter", "map_batches"])
def test_rows_are_cut_where_their_status_changes(kind: Any) -> None:
    """Rows of other branches do not count, records without a status are live; outputs carry the status."""
    hearing = Hearing()
    function = {"flat_map": hearing.repeat, "map_batches": hearing.batch}.get(kind, hearing)
    field: Any = ("_backlog", pa.bool_())
    chain = replace(
        _chain(_step(function, kind)), backlog="_backlog", schema=pa.schema([*OUTPUT, field]),
        carried=["topic", "partition", "offset", "_ordinal", "_backlog"],
    )  # fmt: skip
    statuses = [True, False, True, False, None, True]
    rows = _batch(1, 2, 1, 1, 1, 1).append_column("_backlog", pa.array(statuses, pa.bool_()))

    found = [row for batch in chain.run([rows, rows.slice(5)]) for row in batch.to_pylist()]

    assert len(ROWS) + 1 == rows.num_columns
    own = {0: True, 20: True, 30: False, 40: None, 50: True}
    if kind == "map_batches":
        assert hearing.heard == [True, [0, 20], False, [30, 40], True, [50], [50]]
        own[40] = False  # a row of a batch is not of one record
    else:
        assert hearing.heard == [True, 0, 20, False, 30, 40, True, 50, 50]
    mine = [(row["_c3"], row["_backlog"]) for row in found if row["_branch"] == 1]
    assert dict(mine) == own
    assert [row["_backlog"] for row in found if row["_branch"] == 2] == [False]
