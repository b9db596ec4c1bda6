"""The allowed lateness of interval and window joins: late rows, what waits for them, and its changes.

The rows of a window join have the last millisecond of their window as timestamp, and partners of equal times.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.joins.interval import IntervalJoin
from flowcore.keyed.inspection import _keys
from flowcore.keyed.manifest import StateManifest
from flowcore.keyed.operator import StepOutputs
from flowcore.keyed.output_columns import LATE_LEFT, LATE_RIGHT
from flowcore.watermarks.merge import delay_watermark
from tests.unit.joins.sided_rows import Row, batch_of, found_in, histories, left, right
from tests.unit.joins.test_interval import How, Oracle, Pair, join
from tests.unit.keyed.stored_group import StoredGroup

KINDS: tuple[How, ...] = get_args(How)
LATE: dict[str, Any] = {"late_left": ("key", "t"), "late_right": ("key", "t")}
ORDERS = st.lists(
    st.tuples(st.booleans(), st.sampled_from([None, "a", "b"]), st.integers(0, 12)), max_size=14
)
LAST_MS, LATENESS_MS = 99, 10
"""The last millisecond of a window, and the lateness of the joins of windows."""


def windows(how: How, lateness_ms: int = LATENESS_MS) -> StoredGroup:
    return StoredGroup(join(how, 0, 0, allowed_lateness_ms=lateness_ms, **LATE))


def feed(stored: StoredGroup, *rows: Row, how: str = "restart") -> list[Any]:
    """What rows make it emit; another worker continues."""
    out = StepOutputs()
    stored.group.rows(batch_of([*rows]), out)
    stored.store(how)
    return sorted(found_in(out), key=str)


def advance(stored: StoredGroup, watermark_ms: int, how: str = "restart") -> list[Any]:
    """What a watermark makes it emit; another worker continues."""
    out = StepOutputs()
    stored.group.advance_watermark(watermark_ms, out)
    stored.store(how)
    return sorted(found_in(out), key=str)


def late_of(stored: StoredGroup, *rows: Row) -> list[tuple[str, Any]]:
    """The rows that leave by the side outputs, of rows that emit nothing else."""
    out = StepOutputs()
    stored.group.rows(batch_of([*rows]), out)
    stored.store("restart")
    assert found_in(out) == []
    return [(side, row) for side in (LATE_LEFT, LATE_RIGHT) for row in found_in(out, side)]


PAIR, ALONE = ("a", 1, "2", LAST_MS), ("a", 1, None, LAST_MS)
WITH_PARTNER: dict[How, list[Any]] = {"semi": [ALONE], "anti": []}
WITHOUT_PARTNER: dict[How, list[Any]] = {"left": [ALONE], "full": [ALONE], "anti": [ALONE]}


@pytest.mark.parametrize("watermark_ms", [LAST_MS, LAST_MS + 1, LAST_MS + LATENESS_MS - 1])
@pytest.mark.parametrize("how", KINDS)
def test_a_late_row_within_the_lateness_is_joined_once(how: How, watermark_ms: int) -> None:
    """At the end of its window, after it, and in the last millisecond of the lateness."""
    stored = windows(how)
    assert feed(stored, left("a", LAST_MS, 1)) == []
    assert advance(stored, watermark_ms) == []

    assert feed(stored, right("a", LAST_MS, 2)) == WITH_PARTNER.get(how, [PAIR])
    assert advance(stored, LAST_MS + LATENESS_MS) == []


@pytest.mark.parametrize("how", KINDS)
def test_a_row_is_late_when_the_lateness_is_over(how: How) -> None:
    """On each side; then nothing is kept, and the row without partner has been emitted."""
    stored = windows(how)
    feed(stored, left("a", LAST_MS, 1))
    assert advance(stored, LAST_MS + LATENESS_MS - 1) == []
    assert advance(stored, LAST_MS + LATENESS_MS) == WITHOUT_PARTNER.get(how, [])

    found = late_of(stored, left("a", LAST_MS, 3), right("a", LAST_MS, 2))
    assert found == [(LATE_LEFT, ("a", LAST_MS)), (LATE_RIGHT, ("a", LAST_MS))]
    assert advance(stored, MAX_TIMESTAMP_MS) == []
    assert [*stored.group.snapshot()] == []


def test_only_the_new_pairs_of_a_late_row_are_emitted() -> None:
    """A late left row meets all right rows, each of which has its pairs with earlier ones already."""
    stored = windows("full")
    first = [left("a", LAST_MS, 1), right("a", LAST_MS, 2), right("a", LAST_MS, 3), right("b", LAST_MS, 4)]
    assert len(feed(stored, *first)) == 2
    advance(stored, LAST_MS)

    assert feed(stored, left("a", LAST_MS, 5), how="snapshot") == [
        ("a", 5, "2", LAST_MS), ("a", 5, "3", LAST_MS),
    ]  # fmt: skip
    assert feed(stored, right(None, LAST_MS, 6)) == [(None, None, "6", LAST_MS)]  # it never has a partner
    assert advance(stored, LAST_MS + LATENESS_MS) == [("b", None, "4", LAST_MS)]


def test_a_semi_join_emits_a_left_row_once_when_its_first_partner_arrives() -> None:
    """Whichever row is late."""
    stored = windows("semi")
    feed(stored, left("a", LAST_MS, 1), right("b", LAST_MS, 2))
    advance(stored, LAST_MS + 5)

    assert feed(stored, right("a", LAST_MS, 3), left("b", LAST_MS, 4)) == [ALONE, ("b", 4, None, LAST_MS)]
    assert feed(stored, right("a", LAST_MS, 5), right("b", LAST_MS, 6)) == []


def test_rows_of_an_interval_join_are_kept_for_the_lateness() -> None:
    """A late left row finds the earliest right row that it may have; unmatched rows wait by side."""
    stored = StoredGroup(join("full", 3, 5, allowed_lateness_ms=10, **LATE))
    feed(stored, right("a", 97, 2), left("b", 100, 3), right("b", 120, 4))
    assert advance(stored, 109) == []
    assert feed(stored, left("a", 100, 1)) == [("a", 1, "2", 100)]
    assert late_of(stored, left("a", 99, 5), right("a", 99, 6)) == [
        (LATE_LEFT, ("a", 99)), (LATE_RIGHT, ("a", 99)),
    ]  # fmt: skip

    assert advance(stored, 114) == []
    assert advance(stored, 115) == [("b", 3, None, 100)]
    assert advance(stored, 132) == []
    assert advance(stored, 133) == [("b", None, "4", 120)]


@pytest.mark.parametrize("lateness_ms", [0, 10])
def test_emitted_watermark_is_held_back_by_the_lateness(lateness_ms: int) -> None:
    """For each kind, since a pair may be as old; in addition to the interval of unmatched rows."""
    found = {how: join(how, allowed_lateness_ms=lateness_ms).watermark_delay_ms for how in KINDS}

    assert found == {
        how: lateness_ms + delay_ms for how, delay_ms in zip(KINDS, (0, 5, 3, 5, 0, 5), strict=True)
    }


def batch_join(config: IntervalJoin, rows: list[Row]) -> Counter[Pair]:
    """The join of rows that are all there, by nested loops."""
    found, matched = Counter[Pair](), set[int]()
    for one in rows:
        for two in rows:
            near = -config.before_ms <= two.t - one.t <= config.after_ms
            if one.is_right < two.is_right and one.key is not None and one.key == two.key and near:
                matched |= {one.number, two.number}
                if config.how not in ("semi", "anti"):
                    found[one.key, one.number, str(two.number), max(one.t, two.t)] += 1
    for row in rows:
        sides = (None, str(row.number)) if row.is_right else (row.number, None)
        is_lone = row.number not in matched and config.keeps_unmatched[row.is_right]
        is_half = row.number in matched and config.how == "semi" and not row.is_right
        found[row.key, *sides, row.t] += is_lone or is_half
    return +found


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(KINDS), ORDERS, st.sampled_from([(0, 0), (0, 4), (3, 5)]), st.data())
def test_a_lateness_as_long_as_the_disorder_gives_the_join_of_all_rows(
    how: How, order: list[tuple[bool, str | None, int]], interval: tuple[int, int], data: st.DataObject
) -> None:
    """Over any batches, with the watermark at the newest row; with a millisecond less a row is late."""
    rows = [Row(*each, number) for number, each in enumerate(order)]
    cuts = data.draw(st.lists(st.integers(1, 4), min_size=len(rows), max_size=len(rows)))
    batches, watermarks_ms, start = list[list[Row]](), [MIN_TIMESTAMP_MS], 0
    for count in cuts:
        batches += [rows[start : start + count]] if start < len(rows) else []
        start += count
    for batch in batches:
        watermarks_ms.append(max([watermarks_ms[-1], *(row.t for row in batch)]))
    behind_ms = [
        watermark_ms - row.t
        for batch, watermark_ms in zip(batches, watermarks_ms, strict=False)
        for row in batch
    ]
    needed_ms = max(max(behind_ms, default=-1) + 1, 0)

    def run(lateness_ms: int) -> tuple[Counter[Pair], int]:
        stored = StoredGroup(join(how, *interval, allowed_lateness_ms=lateness_ms, **LATE))
        found, late = Counter[Pair](), 0
        for batch, watermark_ms in zip([*batches, []], [*watermarks_ms[1:], MAX_TIMESTAMP_MS], strict=True):
            out = StepOutputs()
            stored.group.rows(batch_of(batch), out)
            stored.group.advance_watermark(watermark_ms, out)
            stored.store(data.draw(st.sampled_from(["delta", "snapshot", "restart"])))
            found, late = found + Counter(found_in(out)), late + out.counters.get("late_records", 0)
        assert [*stored.group.snapshot()] == []
        return found, late

    config = join(how, *interval)
    assert run(needed_ms) == (batch_join(config, rows), 0)
    assert needed_ms == 0 or run(needed_ms - 1)[1] > 0


@dataclass
class ChangingOracle(Oracle):
    """What was over by the lateness of then stays over."""

    over_ms: int = MIN_TIMESTAMP_MS

    def is_over(self, time_ms: int) -> bool:
        return time_ms <= self.over_ms

    def advance(self, watermark_ms: int) -> list[Pair]:
        self.over_ms = max(self.over_ms, watermark_ms - self.config.allowed_lateness_ms)
        return super().advance(watermark_ms)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(KINDS),
    histories(),
    st.sampled_from([(0, 0), (3, 5)]),
    st.lists(st.sampled_from([0, 2, 7, 30]), min_size=13, max_size=13),
)
def test_a_changed_lateness_repeats_nothing_and_emits_no_late_row(
    how: How, history: Any, interval: tuple[int, int], latenesses_ms: list[int]
) -> None:
    """Each start has another one. State says no later watermark than the one that was emitted."""
    stored = StoredGroup(join(how, *interval, **LATE))
    oracle = ChangingOracle(stored.config)
    watermark_ms, emitted_ms, number = 0, MIN_TIMESTAMP_MS, 0
    for (given_rows, advance_ms, fate), lateness_ms in zip(history, latenesses_ms, strict=False):
        rows = [Row(*each[:2], watermark_ms + each[2], number + n) for n, each in enumerate(given_rows, 1)]
        number += len(rows)
        out = StepOutputs()
        expected = [pair for row in rows for pair in oracle.take(row)]
        stored.group.rows(batch_of(rows), out)
        before_ms = emitted_ms
        if advance_ms:
            watermark_ms += advance_ms
            expected += oracle.advance(watermark_ms)
            stored.group.advance_watermark(watermark_ms, out)
            emitted_ms = max(emitted_ms, delay_watermark(watermark_ms, stored.config.watermark_delay_ms))
        stored.store("snapshot" if fate == "snapshot" else "delta")

        assert Counter(found_in(out)) == Counter(expected)
        assert (how == "semi" and any(interval)) or all(pair[-1] > before_ms for pair in found_in(out))
        if emitted_ms > MIN_TIMESTAMP_MS:
            assert delay_watermark(watermark_ms, stored.header["watermark_delay_ms"]) <= emitted_ms
        if fate == "restart":
            stored.config = oracle.config = replace(stored.config, allowed_lateness_ms=lateness_ms)
            stored.store("restart")


def test_a_longer_lateness_brings_no_window_back() -> None:
    """Its row was emitted without partner; the lateness counts for windows that have not ended."""
    stored = windows("left", lateness_ms=0)
    feed(stored, left("a", LAST_MS, 1))
    assert advance(stored, LAST_MS) == [ALONE]

    restart(stored, 3_600)
    assert late_of(stored, right("a", LAST_MS, 2)) == [(LATE_RIGHT, ("a", LAST_MS))]
    assert feed(stored, left("a", LAST_MS + 10, 3)) == []
    assert advance(stored, LAST_MS + 50) == []
    assert feed(stored, right("a", LAST_MS + 10, 4)) == [("a", 3, "4", LAST_MS + 10)]
    assert late_of(stored, right("a", LAST_MS, 5)) == [(LATE_RIGHT, ("a", LAST_MS))]


def test_a_shorter_lateness_counts_from_the_next_watermark() -> None:
    """No unmatched row is lost at the start, which emits nothing."""
    stored = windows("left", lateness_ms=3_600)
    feed(stored, left("a", LAST_MS, 1))
    advance(stored, LAST_MS + 50)

    restart(stored, 10)
    assert feed(stored, right("b", LAST_MS, 2)) == []
    assert stored.header["watermark_delay_ms"] == 3_600  # what it has emitted so far
    assert advance(stored, LAST_MS + 51) == [ALONE]
    assert stored.header["watermark_delay_ms"] == 10
    assert late_of(stored, right("a", LAST_MS, 3)) == [(LATE_RIGHT, ("a", LAST_MS))]


def test_state_shows_the_rows_that_late_rows_may_still_find() -> None:
    """Older segments have others, too."""
    stored = windows("full")
    for time_ms in (0, 50, LAST_MS):
        feed(stored, left("a", time_ms, time_ms), how="delta")
    advance(stored, 55, how="delta")

    manifest = StateManifest(layout=stored.config.layout, key_groups=1)
    manifest.header = stored.header
    found = {each.key["key"]: each.states for each in _keys(manifest, stored.pieces) or ()}
    assert found == {"a": {"left_ms": [50, LAST_MS]}}


def restart(stored: StoredGroup, lateness_ms: int) -> None:
    """Start again with another lateness, which is the same layout."""
    config = replace(stored.config, allowed_lateness_ms=lateness_ms)
    assert config.layout == stored.config.layout
    stored.config = config
    stored.store("restart")
