"""However partitions are cut into batches, windows give the same: what every record of them adds up to.

Watermarks flow in band here, as they do in a live query: each batch says, for each partition that it read,
what its records show; every key group merges that by itself. The oracle knows no batches, no watermarks and
none of flowcore's modules: it groups all records at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.testing.window_functions import CollectList
from flowcore.watermarks import bounded_out_of_orderness
from flowcore.watermarks.generated import watermarks_ms
from flowcore.watermarks.merge import MergedWatermark, PartitionWatermark
from flowcore.windows import (
    KeyedRecord,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    WindowConfig,
    WindowOperator,
    WindowProcess,
    WindowState,
)
from flowcore.windows.codec import decode_windows, encode_windows

Row = tuple[str, int, int]
"""Key, value, timestamp."""

DELAY_MS = 7


class KeyGroup:
    """One operator with its partitions' watermarks; it can be restarted."""

    def __init__(self, config: WindowConfig, partitions: int) -> None:
        self.config = config
        self.merged = MergedWatermark(map(str, range(partitions)))
        self.state = WindowState()

    def batch(self, rows: Sequence[Row], control: Mapping[Any, PartitionWatermark]) -> Iterator[Any]:
        """Records first, then the batch's watermark."""
        operator = WindowOperator(self.config)
        seen = [operator.process(self.state, [KeyedRecord(*row) for row in rows])]
        self.merged.merge({str(partition): each for partition, each in control.items()})
        seen.append(operator.advance_watermark(self.state, self.merged.watermark_ms))
        for each in seen:
            assert not each.late
            assert not each.dropped_records
            for result in each.results:
                assert (result.firing, result.is_late) == (1, False)
                yield result.key, tuple(sorted(result.value)), result.window.start_ms, result.window.end_ms

    def restart(self) -> None:
        written, before = encode_windows(self.state.keys, self.state), self.state
        self.state = WindowState(before.watermark_ms)
        decode_windows(written, self.state, self.config)


def _watermarks(rows: Sequence[Row]) -> PartitionWatermark:
    """Watermarks of a batch, computed from the batch alone, so that readers need no state."""
    generator = bounded_out_of_orderness(timedelta(milliseconds=DELAY_MS)).generator
    newest_ms = max((row[2] for row in rows), default=MIN_TIMESTAMP_MS)
    return PartitionWatermark(int(watermarks_ms(generator, np.array([newest_ms]))[0]))


@st.composite
def _partitions(draw: st.DrawFn) -> list[list[Row]]:
    """Partitions with separate event times, out of order by at most the delay."""
    found = []
    for start_ms in draw(st.lists(st.integers(-200, 200), min_size=1, max_size=3)):
        rows, newest_ms = [], start_ms
        for value in range(draw(st.integers(0, 15))):
            newest_ms += draw(st.integers(0, 9))
            behind_ms = draw(st.integers(0, DELAY_MS))
            rows.append((draw(st.sampled_from("abc")), value, newest_ms - behind_ms))
        found.append(rows)
    return found


@st.composite
def _batches(draw: st.DrawFn, partitions: list[list[Row]]) -> list[dict[int, list[Row]]]:
    """Batches with some records of some partitions until all are read; a partition may lag."""
    left = dict(enumerate(partitions))
    batches = []
    while any(left.values()):
        taken = {}
        for number, rows in left.items():
            size = draw(st.integers(0, len(rows)))
            taken[number], left[number] = rows[:size], rows[size:]
        batches.append(taken)
    return batches


def _expected(kind: str, size: int, slide: int, rows: Sequence[Row]) -> Counter[Any]:
    """Results over all records at once."""
    groups = defaultdict(list)
    if kind == "session":
        for key in {row[0] for row in rows}:
            start_ms = end_ms = None
            for _, value, ts in sorted((row for row in rows if row[0] == key), key=lambda row: row[2]):
                if end_ms is None or ts > end_ms:
                    start_ms = ts
                end_ms = ts + size
                groups[key, start_ms].append((value, end_ms))
        return Counter(
            (key, tuple(sorted(v for v, _ in found)), start_ms, max(e for _, e in found))
            for (key, start_ms), found in groups.items()
        )
    for key, value, ts in rows:
        for start_ms in range(ts - size + 1, ts + 1):
            if start_ms % slide == 0:
                groups[key, start_ms].append(value)
    return Counter((key, tuple(sorted(found)), s, s + size) for (key, s), found in groups.items())


@settings(max_examples=150, deadline=None)
@given(
    partitions=_partitions(),
    sizes=st.tuples(*[st.integers(1, 20)] * 2),
    groups=st.integers(1, 3),
    data=st.data(),
)
@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session"])
def test_windows_add_up_to_the_same_however_partitions_are_cut(
    kind: str, partitions: list[list[Row]], sizes: tuple[int, int], groups: int, data: st.DataObject
) -> None:
    """Nothing is late, since the slowest partition is waited for, and every window emits once."""
    size, slide = max(sizes), min(sizes) if kind == "sliding" else max(sizes)
    assigner: Any = SessionWindows(size) if kind == "session" else SlidingWindows(size, slide)
    if kind == "tumbling":
        assigner = TumblingWindows(size)
    config = WindowConfig(assigner=assigner, function=WindowProcess(CollectList()))
    running = [KeyGroup(config, len(partitions)) for _ in range(groups)]
    found: Counter[Any] = Counter()
    end = {number: PartitionWatermark(MAX_TIMESTAMP_MS) for number in range(len(partitions))}

    for taken in [*data.draw(_batches(partitions)), None]:
        control = end if taken is None else {number: _watermarks(rows) for number, rows in taken.items()}
        rows = [row for mine in (taken or {}).values() for row in mine]
        for number, group in enumerate(running):
            found.update(group.batch([row for row in rows if ord(row[0]) % groups == number], control))
            if data.draw(st.booleans()):
                group.restart()

    assert found == _expected(kind, size, slide, [row for rows in partitions for row in rows])
