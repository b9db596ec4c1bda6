"""Numbers of firings of complete windows are state, also as earlier versions wrote them."""

from typing import Any

import pyarrow as pa
import pytest

from flowcore.keyed import segments
from flowcore.keyed.operator import StepOutputs
from flowcore.windows import TumblingWindows, WindowAggregate, WindowConfig
from flowcore.windows.built_in import BuiltIn, BuiltIns
from flowcore.windows.columnar.keyed import ColumnarWindows

ROWS = pa.schema([("user", pa.string()), ("t", pa.int64())])


def _group() -> Any:
    config = WindowConfig(
        assigner=TumblingWindows(10), function=WindowAggregate(BuiltIns((("n", BuiltIn("count")),))),
        allowed_lateness_ms=100,
    )  # fmt: skip
    return ColumnarWindows(config=config, keys=("user",), timestamp="t", rows=ROWS).open()


def _firings(group: Any, *users: str) -> list[tuple[str, int, int]]:
    out = StepOutputs()
    group.rows(pa.record_batch([list(users), [5] * len(users)], schema=ROWS), out)
    return [(row["user"], row["n"], row["@firing"]) for _, batch in out.batches for row in batch.to_pylist()]


@pytest.mark.parametrize("repeated", [False, True], ids=["as written", "keys repeated by an earlier version"])
def test_firings_continue_after_a_restart(repeated: bool) -> None:
    group = _group()
    _firings(group, "a", "b", "c")
    group.advance_watermark(20, StepOutputs())
    late = _firings(group, "b", "a", "b")
    pieces = []
    for name, table in (each for piece in group.snapshot() for each in segments.decode(piece)):
        again = pa.concat_batches([table, table]) if repeated and name == "refirings" else table
        pieces.append(segments.encode({name: again}))

    restored = _group()
    restored.restore(group.header(), iter(pieces))

    assert late == [("b", 2, 2), ("a", 2, 2), ("b", 3, 3)]
    assert _firings(restored, "a", "b", "c") == [("a", 3, 3), ("b", 4, 4), ("c", 2, 2)]
    assert _firings(restored, "a", "a", "c") == [("a", 4, 4), ("a", 5, 5), ("c", 3, 3)]
    assert [name for piece in pieces for name, _ in segments.decode(piece)] == ["panes", "refirings"]


@pytest.mark.parametrize("function", ["sum", "avg", "min", "max"])
@pytest.mark.parametrize("large", [1e16, 1e308, float("inf"), float("nan")], ids=str)
def test_late_total_is_that_of_the_state(function: str, large: float) -> None:
    """In the order of the records, in which doubles are rounded; the next firing goes on from it."""
    schema = pa.schema([("user", pa.string()), ("t", pa.int64()), ("x", pa.float64())])
    config = WindowConfig(
        assigner=TumblingWindows(10),
        function=WindowAggregate(BuiltIns((("total", BuiltIn(function, ("x",))),))),
        allowed_lateness_ms=100,
    )

    def opened() -> Any:
        group = ColumnarWindows(config=config, keys=("user",), timestamp="t", rows=schema).open()
        totals(group, 0.3)
        group.advance_watermark(20, StepOutputs())
        return group

    def totals(group: Any, *values: float | None) -> list[float]:
        out = StepOutputs()
        columns = [["a"] * len(values), [5] * len(values), list(values)]
        group.rows(pa.record_batch(columns, schema=schema), out)
        return [row["total"] for _, batch in out.batches for row in batch.to_pylist()]

    values = [0.1, large, *[1.0] * 9, -large, 0.2, large]
    group, again = opened(), opened()
    together, after = totals(group, *values), totals(group, None)

    assert repr(together) == repr([total for value in values for total in totals(again, value)])
    assert repr(after) == repr(together[-1:])
