"""The merge of channels as vectors agrees with one that takes element by element."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore import monotonous
from flowcore.channels import MOST_SENDERS
from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, Watermark, WatermarkStatus
from flowcore.watermarks.arriving import ArrivingWatermarks
from flowcore.watermarks.merge import ChannelElements, Emitted
from flowcore.watermarks.progress import WatermarkProgress, WatermarkSource
from flowcore.watermarks.strategies import WatermarkStrategy

Element = tuple[str, Watermark | WatermarkStatus]
IDLE, ACTIVE = WatermarkStatus(idle=True), WatermarkStatus(idle=False)

times = st.integers(-9, 9) | st.sampled_from([MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS])
statuses = st.sampled_from([IDLE, ACTIVE])
elements = st.lists(st.tuples(st.sampled_from("abcde"), times.map(Watermark) | statuses), max_size=12)


class PlainMerge:
    """The rule, one channel and one element at a time."""

    def __init__(self, names: str) -> None:
        self.channels = {name: [MIN_TIMESTAMP_MS, False] for name in names}
        self.watermark_ms = MIN_TIMESTAMP_MS

    @property
    def idle(self) -> bool:
        waits = [not idle and time_ms < MAX_TIMESTAMP_MS for time_ms, idle in self.channels.values()]
        return not any(waits) and any(idle for _, idle in self.channels.values())

    def step(self, given_elements: Sequence[Element]) -> list[tuple[int, int, bool]]:
        """The changes, by number of the element by channel; -1 for what becomes active first."""
        known = (self.watermark_ms, self.idle)
        for name, element in given_elements:
            if name not in self.channels:
                self.channels[name] = [MIN_TIMESTAMP_MS, False]
            if element == ACTIVE:
                self.channels[name][1] = False
        changes = []
        order = list(dict.fromkeys(name for name, _ in given_elements))
        self._merge()
        for number, (name, element) in enumerate(
            [(-1, None), *sorted(given_elements, key=lambda each: order.index(each[0]))], -1
        ):
            if isinstance(element, Watermark):
                self.channels[name][0] = max(self.channels[name][0], element.timestamp_ms)
            elif isinstance(element, WatermarkStatus):
                self.channels[name][1] = element.idle
            self._merge()
            if (self.watermark_ms, self.idle) != known:
                known = (self.watermark_ms, self.idle)
                changes.append((number, *known))
        return changes

    def _merge(self) -> None:
        for channel in self.channels.values():
            channel[1] = channel[1] and channel[0] != MAX_TIMESTAMP_MS
        active = [time_ms for time_ms, idle in self.channels.values() if not idle]
        if active and not self.idle:
            self.watermark_ms = max(self.watermark_ms, min(active))


def _follow(source: ArrivingWatermarks, step: Sequence[Element]) -> list[tuple[int, int, bool]]:
    before = (source.watermark_ms, source.idle)
    made, _ = ChannelElements.from_elements(step)
    source.join(made)
    after = (source.watermark_ms, source.idle)
    first = [(-1, *after)] if after != before else []
    return first + source.merged.follow(made)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(["a", "abc"]), st.lists(elements.filter(bool), max_size=5))
def test_vectors_agree_with_one_element_at_a_time(names: str, steps: list[list[Element]]) -> None:
    """Each change is at the same element, also after a restart of each step."""
    plain, source = PlainMerge(names), ArrivingWatermarks(names)

    for step in steps:
        kept = json.loads(json.dumps(source.snapshot()))
        source = ArrivingWatermarks(names)
        source.restore(kept)
        assert _follow(source, step) == plain.step(step)
        channels = {name: [each.watermark_ms, each.idle] for name, each in source.merged.channels().items()}
        assert channels == plain.channels
        assert source.watermark_ms == plain.watermark_ms


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["a", "abc"]), st.lists(elements.filter(bool), max_size=5))
def test_elements_taken_together_end_as_those_taken_in_order(names: str, steps: list[list[Element]]) -> None:
    """The driver needs no order; it emits no higher watermark than a key group."""
    ordered, together = ArrivingWatermarks(names), ArrivingWatermarks(names)

    for step in steps:
        _follow(ordered, step)
        together.arrive(ChannelElements.from_elements(step)[0])
        assert together.merged.channels() == ordered.merged.channels()
        assert together.watermark_ms <= ordered.watermark_ms


def test_channels_that_become_active_hold_the_watermark_together() -> None:
    """The first channel is ahead: its watermark would make the records of the second one late."""
    progress = WatermarkProgress({"s": WatermarkSource(None, ("a", "b"))})
    _changes(progress, ("a", Watermark(500)), ("b", Watermark(100)), ("a", IDLE), ("b", IDLE))

    changes = _changes(progress, ("a", ACTIVE), ("a", Watermark(600)), ("b", ACTIVE), ("b", Watermark(200)))

    assert changes == [(-1, (ACTIVE,)), (3, (Watermark(200),))]


def test_partition_holds_the_watermark_until_its_first_sender_is_known() -> None:
    """Each sender is a channel of the partition; several that are new join together."""
    progress = WatermarkProgress({"s": WatermarkSource(None, ("0", "1"))})

    assert _changes(progress, ("0/x", Watermark(7)), ("0/y", Watermark(5))) == []
    assert _changes(progress, ("1/x", Watermark(9)), ("1/y", Watermark(8))) == [(1, (Watermark(5),))]
    assert [*progress.partitions()["s"]] == ["0", "1"]


@pytest.mark.parametrize("together", [False, True], ids=["in later steps", "in one step"])
def test_elements_without_a_sender_are_a_channel_of_their_own(together: bool) -> None:
    """The first element with a sender does not remove it."""
    progress = WatermarkProgress({"s": WatermarkSource(None, ("0",))})
    sent: list[Element] = [("0", Watermark(5)), ("0/x", Watermark(9)), ("0/y", Watermark(8))]

    changes = [_changes(progress, *step) for step in ([sent] if together else [[each] for each in sent])]

    assert [emitted for step in changes for _, emitted in step] == [(Watermark(5),)]
    assert _changes(progress, ("0", Watermark(7))) == [(0, (Watermark(7),))]
    assert _changes(progress, ("0", IDLE)) == [(0, (Watermark(8),))]


SENDERS = [f"0/{number:02}" for number in range(MOST_SENDERS)]


def _progress(*senders: str) -> WatermarkProgress:
    return WatermarkProgress({"s": WatermarkSource(None, ("0", "1"), frozenset(senders) or None)})


@pytest.mark.parametrize("is_driver", [False, True], ids=["key-group", "driver"])
def test_first_senders_of_a_partition_count(is_driver: bool) -> None:
    """The first senders are read in a flood of others; the kept state stays small."""
    progress = _progress()
    flood = [(f"0/forged-{number}", Watermark(number)) for number in range(1_000)]

    def take(*elements: Element) -> None:
        made, _ = ChannelElements.from_elements(elements)
        if is_driver:
            progress.arrive("s", made)
        else:
            [*progress.follow({"s": made}, {})]
        progress.poll(0)

    take(*((name, Watermark(5)) for name in SENDERS[:-1]), ("1/x", Watermark(9)))
    take(flood[7], *flood)
    before = len(json.dumps(progress.snapshot()))
    kept, progress = json.loads(json.dumps(progress.snapshot())), _progress()
    progress.restore(kept)
    take(*flood, *((name, Watermark(20)) for name in SENDERS[:-1]), ("1/x", Watermark(9)), *flood)

    assert progress.watermark_ms == 7  # of the one that was the last to be in time
    assert len(json.dumps(progress.snapshot())) <= before + 10
    assert progress.ignored == {"s": 3 * 999}
    take(("1/y", Watermark(8)), (flood[7][0], Watermark(30)))
    assert progress.watermark_ms == 8  # each partition has as many


def test_elements_that_count_keep_their_places_among_the_others() -> None:
    """The records of a step are released by the numbers of the elements."""
    progress = _progress("a")

    assert _changes(
        progress, ("0/x", Watermark(7)), ("0/a", Watermark(3)), ("1/x", IDLE), ("1/a", Watermark(4)),
        ("0/x", Watermark(8)), ("0/a", Watermark(9)),
    ) == [(5, (Watermark(4),))]  # fmt: skip
    assert progress.ignored == {"s": 3}


@pytest.mark.parametrize("strategy", [None, monotonous()], ids=["arriving", "generated"])
def test_channels_that_are_no_longer_declared_hold_nothing(strategy: WatermarkStrategy | None) -> None:
    """A forged channel holds event time, or the end of input, until the source declares the others."""

    def progress(*senders: str) -> WatermarkProgress:
        return WatermarkProgress({"s": WatermarkSource(strategy, ("0", "1"), frozenset(senders) or None)})

    end = Watermark(MAX_TIMESTAMP_MS)
    before = progress()
    forged = [("0/eve", Watermark(1)), *([] if strategy else [("1/eve", end)])]
    before.arrive("s", ChannelElements.from_elements([("0/a", end), *forged])[0])
    assert before.poll(0) == (() if strategy else (Watermark(1),))
    after = progress("a", "b")
    after.restore(json.loads(json.dumps(before.snapshot())))

    after.arrive("s", ChannelElements.from_elements([("1/eve", end), ("0/eve", Watermark(2))])[0])
    assert after.poll(0) == ()
    after.arrive("s", ChannelElements.from_elements([("1/b", end)])[0])
    assert after.poll(0) == (end,)


@pytest.mark.parametrize("is_driver", [False, True], ids=["key-group", "driver"])
def test_silent_channel_expires_until_it_sends_again(is_driver: bool) -> None:
    """Any element counts, also a watermark below the combined one, which holds event time again."""
    progress = _expiring()

    def take(now_ms: int, *elements: Element) -> Emitted:
        nonlocal progress
        made, _ = ChannelElements.from_elements(elements)
        if elements and is_driver:
            progress.arrive("s", made)
        found = [] if is_driver or not elements else [*progress.follow({"s": made}, {})]
        emitted = (*(each for _, _, every in found for each in every), *progress.poll(now_ms))
        kept, progress = json.loads(json.dumps(progress.snapshot())), _expiring()
        progress.restore(kept)
        return emitted

    assert take(0, ("0/a", Watermark(5)), ("0/b", Watermark(9)), ("0/c", IDLE)) == (Watermark(5),)
    assert progress.wake_ms(0) == 1_001
    assert take(600, ("0/b", Watermark(10))) == ()
    assert take(1_000) == ()
    assert take(1_001) == (Watermark(10),)
    assert progress.wake_ms(1_001) == 1_601
    assert take(1_100, ("0/a", Watermark(6)), ("0/b", Watermark(20))) == ()
    assert take(1_200, ("0/a", Watermark(12))) == (Watermark(12),)
    assert take(9_000) == (IDLE,)  # all are silent
    assert take(9_100, ("0/c", Watermark(50))) == ()  # it has said itself that it is idle
    found = take(9_200, ("0/b", Watermark(21)))
    assert (found[0], found[-1]) == (ACTIVE, Watermark(21))
    assert progress.wake_ms(9_200) == 10_201


def test_silent_time_begins_anew_when_the_clock_is_set_back_or_the_query_starts() -> None:
    """No channel expires for the time that the query was down, and channels from before the limit do too."""
    before = _progress()
    before.arrive("s", ChannelElements.from_elements([("0/a", Watermark(5)), ("1/a", Watermark(7))])[0])
    before.poll(0)
    progress = _expiring("0", "1")
    progress.restore(json.loads(json.dumps(before.snapshot())))
    progress.restart()

    assert progress.poll(1_000_000) == (Watermark(5),)
    assert progress.poll(900_000) == ()
    assert progress.poll(901_000) == ()
    assert progress.poll(901_001) == (IDLE,)


def test_channels_whose_statuses_were_missed_are_active_until_they_are_idle_or_expire_again() -> None:
    """One that has ended does not hold the watermark."""
    progress = _expiring()
    end = Watermark(MAX_TIMESTAMP_MS)
    sent: list[Element] = [("0/a", Watermark(5)), ("0/b", Watermark(5)), ("0/b", IDLE), ("0/c", end)]
    progress.arrive("s", ChannelElements.from_elements(sent)[0])
    assert progress.poll(0) == (Watermark(5),)
    assert progress.poll(1_001) == (IDLE,)

    progress.activate("s")
    assert progress.poll(1_100) == (ACTIVE,)
    progress.arrive("s", ChannelElements.from_elements([("0/a", Watermark(9))])[0])
    assert progress.poll(1_200) == ()

    assert progress.poll(2_101) == (Watermark(9),)
    progress.activate("s")
    progress.arrive("s", ChannelElements.from_elements([("0/b", IDLE), ("0/a", Watermark(10))])[0])
    assert progress.poll(2_200) == (Watermark(10),)


def _expiring(*partitions: str) -> WatermarkProgress:
    return WatermarkProgress({"s": WatermarkSource(None, partitions or ("0",), None, 1_000)})


def _changes(progress: WatermarkProgress, *given_elements: Element) -> list[tuple[int, tuple[object, ...]]]:
    found = progress.follow({"s": ChannelElements.from_elements(given_elements)[0]}, {})
    return [(number, emitted) for _, number, emitted in found]
