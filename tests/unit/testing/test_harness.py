"""The in-memory harnesses refuse rows that no live stream has."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from flowcore import KeyedProcessFunction
from flowcore.errors import ElementError
from flowcore.testing.harness import ProcessHarness, WindowHarness
from flowcore.windows import TumblingWindows, WindowConfig, WindowReduce


class Pass(KeyedProcessFunction):
    """Emits what it gets."""

    def process(self, record: Any, context: Any) -> Any:  # noqa: ARG002 - its signature
        yield record


def harnesses() -> list[ProcessHarness | WindowHarness]:
    config = WindowConfig(assigner=TumblingWindows(1000), function=WindowReduce(max), time="processing")
    return [ProcessHarness(Pass()), WindowHarness(config)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a", "'a' is not a row"),
        ("ab", "'ab' is not a row"),
        (("a",), "is not a row"),
        (("a", 1, 2, 3), "is not a row"),
        (("a", 1, 1.5), "timestamp 1.5 of the row .* whole number of milliseconds"),
        (("a", 1, True), "timestamp True"),
        (("a", 1, datetime(2026, 1, 1, tzinfo=UTC)), r"timestamp datetime.*timestamp\(\) \* 1000"),
    ],
    ids=["key", "text", "no value", "too long", "float", "bool", "datetime"],
)
def test_harness_refuses_what_is_not_a_row(row: Any, message: str) -> None:
    """The rows before it are not processed."""
    for harness in harnesses():
        with pytest.raises(ElementError, match=message):
            harness.feed(("b", 1), row)
        assert not harness.snapshot()["keys"]


@pytest.mark.parametrize("row", [("a", 1), ["a", 1, None], (None, 1, 0)])
def test_harness_takes_rows_with_and_without_a_timestamp(row: Any) -> None:
    for harness in harnesses():
        harness.feed(row)
