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
