"""Keyed process functions that get batches instead of records."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from flowcore.errors import StateError
from flowcore.process import KeyedProcessFunction, ProcessConfig, ProcessOperator, ProcessState
from flowcore.process.function import ProcessContext, RecordMapping
from flowcore.process.opening import OpenContext
from flowcore.testing.harness import ProcessHarness
from tests.unit.process.test_declared_states import Typed


class Batches(KeyedProcessFunction):
    """Counts by key, with one access to the state of each key."""

    def open(self, context: OpenContext) -> None:
        self.seen = context.value_state("seen", "BIGINT")

    def process_batch(
        self, keys: Any, batch: pa.RecordBatch, context: ProcessContext
    ) -> Iterator[pa.RecordBatch]:
        for key in dict.fromkeys(keys):
            context.key = key
            self.seen.set(self.seen.get(0) + keys.count(key))
            context.register_event_timer(max(context.timestamps_ms))
        yield pa.RecordBatch.from_pylist([{"rows": batch.num_rows, "keys": len(set(keys))}])

    def on_timer(self, time_ms: int, context: ProcessContext) -> Iterator[RecordMapping]:  # noqa: ARG002
        yield {"key": context.key, "seen": self.seen.get()}


def test_function_of_batches_selects_keys_itself() -> None:
    harness = ProcessHarness(Batches())
    harness.feed(("a", {"x": 1}, 5), ("b", {"x": 2}, 6), ("a", {"x": 3}, 7))
    harness.restart()
    harness.feed(("a", {"x": 4}, 8))

    assert [batch.to_pylist() for batch in harness.batches] == [
        [{"rows": 3, "keys": 2}], [{"rows": 1, "keys": 1}],
    ]  # fmt: skip
    assert [result.value for result in harness.end_of_input().results] == [
        {"key": "a", "seen": 3}, {"key": "b", "seen": 1}, {"key": "a", "seen": 3},
    ]  # fmt: skip


def test_function_of_batches_has_no_key_until_it_selects_one() -> None:
    class Forgetful(Batches):
        def process_batch(self, keys: Any, batch: Any, context: Any) -> Any:  # noqa: ARG002
            return self.seen.get()

    harness = ProcessHarness(Forgetful())
    with pytest.raises(StateError, match=r"set context.key first"):
        harness.feed(("a", {"x": 1}, 5))


def test_function_of_records_can_be_given_a_batch() -> None:
    operator, state = ProcessOperator(ProcessConfig(function=Typed("INT"))), ProcessState()
    batch = pa.RecordBatch.from_pylist([{"value": 1}, {"value": 2}])

    seen = operator.process_batch(state, ["a", "b"], [5, None], batch)

    assert [tuple(result) for result in seen.results] == [
        ("a", {"kept": 1}, 5, 0),
        ("b", {"kept": 2}, None, 1),
    ]
