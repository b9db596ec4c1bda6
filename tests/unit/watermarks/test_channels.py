"""The merge of channels as vectors agrees with one that takes element by element."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, Watermark, WatermarkStatus
from flowcore.watermarks.arriving import ArrivingWatermarks
from flowcore.watermarks.merge import ChannelElements
from flowcore.watermarks.progress import WatermarkProgress, WatermarkSource

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
        return all(idle for _, idle in self.channels.values())

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
        if active:
            self.watermark_ms = max(self.watermark_ms, min(active))


def _follow(source: ArrivingWatermarks, step: Sequence[Element]) -> list[tuple[int, int, bool]]:
    before = (source.watermark_ms, source.idle)
    made, _ = ChannelElements.of(step)
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
        together.take(ChannelElements.of(step)[0])
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


def _changes(progress: WatermarkProgress, *given_elements: Element) -> list[tuple[int, tuple[object, ...]]]:
    found = progress.follow({"s": ChannelElements.of(given_elements)[0]})
    return [(number, emitted) for _, number, emitted in found]
