"""The runtime: one step of one key group, from what came to what goes out, with its state kept.

The state of a group is decoded once and then remembered in the worker process, which Spark uses again for
later batches. What is remembered counts only if the store says so: a group moves between workers, a task is
tried again, a batch is run again after a failure. So a step takes the remembered state out before it begins
and puts it back when all is written; it is used again if its position is one that led to the store's, and
what it has missed is read from the deltas.

While no user's function fails, nothing is noted that could be taken back. If one does, and its record may
leave as a dead letter, the step begins again with the state as the store has it, and each call is minded.

Deltas pile up until they are as large as the last snapshot; then a new one replaces them. So what steps write
goes with what they change and not with what is held.
"""

from __future__ import annotations

import gc
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from flowcore.elements import LatencyMarker, Watermark, WatermarkStatus
from flowcore.errors import FlowcoreError, StateError
from flowcore.keyed.columns import concat_batches
from flowcore.keyed.manifest import SegmentRef, StateManifest, StatePosition
from flowcore.keyed.operator import Closing, KeyGroup, KeyGroupOperator, StepOutputs, SupportsFailureIsolation
from flowcore.keyed.packed import Channel, Packed, PackedKind, sort_packed
from flowcore.keyed.store import Store
from flowcore.keyed.watermark_progress import WatermarkProgress, WatermarkSource
from flowcore.watermarks.tracking import Told

__all__ = ["Remembered", "Runtime", "StepResult"]

_MOST_DELTAS = 200

Remembered = dict[tuple[str, int], tuple[StatePosition, KeyGroup]]
"""What a worker remembers: by query and key group, a state and which one it is."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step came to.

    Attributes:
        outputs: What is put out.
        manifest: What is known of the group now.
        wake_before_ms: When it would have been woken before the step; None if it would not.
    """

    outputs: StepOutputs
    manifest: StateManifest
    wake_before_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """An operator of a query, as it is shipped to the workers.

    Attributes:
        operator: What is done.
        query: Tells its state from that of all other queries' operators in a worker's memory.
        key_groups: How many groups there are, as long as the checkpoint lives.
        sources: The inputs that say how far event time has come.
        rows: The columns of packed records.
        smallest_log_bytes: Deltas of less than this are not worth a snapshot.
    """

    operator: KeyGroupOperator
    query: str
    key_groups: int
    sources: Mapping[str, WatermarkSource]
    rows: pa.Schema
    smallest_log_bytes: int = 256 << 10

    def step(
        self, group: int, items: Iterable[Packed], clock_ms: int, store: Store, remembered: Remembered
    ) -> StepResult:
        """Take what came for a key group.

        Args:
            group: Its number.
            items: What came; nothing if the clock alone made it due.
            clock_ms: The clock, the same for all groups in a batch, and when the batch is run again.
            store: The group's state.
            remembered: What this worker remembers.

        Raises:
            StateError: The state was left by another version or by another operator.
        """
        manifest = self._manifest(store)
        wake_before_ms = manifest.wake_ms
        state = self._state(manifest, store, remembered.pop((self.query, group), None))
        ordered = sort_packed(items)
        with _without_collection():
            try:
                event_time, backlog, out = self._taken(state, manifest, ordered, clock_ms)
            except FlowcoreError:
                state = self._state(manifest, store, None)
                if not (isinstance(state, SupportsFailureIsolation) and state.isolate_failures()):
                    raise
                event_time, backlog, out = self._taken(state, manifest, ordered, clock_ms)
            manifest.backlog = backlog
            self._write(manifest, state, store)
        manifest.header = state.header()
        manifest.event_time = event_time.snapshot()
        times = [time for time in (state.wake_ms, event_time.wake_ms(clock_ms)) if time is not None]
        manifest.wake_ms = max(min(times), clock_ms + 1) if times else None
        for what, often in out.counters.items():
            manifest.counters[what] = manifest.counters.get(what, 0) + often
        store.put_manifest(manifest.encode())
        remembered[self.query, group] = manifest.position, state
        return StepResult(out, manifest, wake_before_ms)

    def read(self, store: Store) -> tuple[StateManifest, KeyGroup]:
        """The state of a key group, to look into.

        Raises:
            StateError: It was left by another version or by another operator.
        """
        manifest = self._manifest(store)
        return manifest, self._state(manifest, store, None)

    def close(self) -> None:
        """A task ends: what its steps have opened is closed; a next one may open it again."""
        if isinstance(self.operator, Closing):
            self.operator.close()

    def _manifest(self, store: Store) -> StateManifest:
        written = store.manifest()
        if written is None:
            return StateManifest(layout=self.operator.layout, key_groups=self.key_groups)
        return StateManifest.decode(written, layout=self.operator.layout, key_groups=self.key_groups)

    def _state(
        self, manifest: StateManifest, store: Store, known: tuple[StatePosition, KeyGroup] | None
    ) -> KeyGroup:
        if known is not None and known[0] in manifest.positions:
            position, state = known
            if manifest.snapshot_leads_to <= position.number:
                newer = [delta for delta in manifest.deltas if delta.leads_to > position.number]
                if position != manifest.position:
                    state.restore(manifest.header, _read(store, newer))
                return state
        state = self.operator.open()
        if manifest.positions:
            state.restore(manifest.header, _read(store, [*manifest.snapshot, *manifest.deltas]))
        return state

    def _taken(
        self, state: KeyGroup, manifest: StateManifest, items: list[Packed], clock_ms: int
    ) -> tuple[WatermarkProgress, bool | None, StepOutputs]:
        event_time = WatermarkProgress(self.sources)
        out = StepOutputs(bad=[item.payload for item in items if item.kind == PackedKind.BAD])
        event_time.restore(manifest.event_time)
        state.advance_clock(clock_ms, out)
        backlog = _tell_attributes(state, manifest.backlog, items, out)
        self._take(state, event_time, items, clock_ms, out)
        return event_time, backlog, out

    def _take(
        self,
        state: KeyGroup,
        event_time: WatermarkProgress,
        items: list[Packed],
        clock_ms: int,
        out: StepOutputs,
    ) -> None:
        waiting: list[pa.RecordBatch] = []
        markers: list[LatencyMarker] = []

        def release() -> None:
            if waiting:
                state.rows(concat_batches(waiting), out)
                waiting.clear()

        for item in items:
            match item.kind:
                case PackedKind.ROWS:
                    waiting.append(item.rows(self.rows))
                case PackedKind.ELEMENT:
                    channel = Channel.decode(item.channel)
                    told = event_time.arrive(channel.source, channel.partition, channel.sender, item.element)
                    if told:
                        release()
                        _tell(state, told, out)
                case PackedKind.SEEN:
                    channel = Channel.decode(item.channel)
                    event_time.seen(channel.source, channel.partition, item.newest_ms)
                case PackedKind.MARKER:
                    markers.append(item.marker)
        release()
        _tell(state, event_time.poll(clock_ms), out)
        for marker in markers:
            state.marker(marker, out)
        state.finish(out, idle=all(item.kind == PackedKind.ATTRIBUTES for item in items))

    def _write(self, manifest: StateManifest, state: KeyGroup, store: Store) -> None:
        manifest.advance(secrets.token_hex(8))
        delta = state.delta()
        if delta is None:
            return
        number = manifest.position.number
        full = manifest.delta_bytes + len(delta) > max(manifest.snapshot_bytes, self.smallest_log_bytes)
        if not full and len(manifest.deltas) < _MOST_DELTAS:
            manifest.deltas.append(_put(manifest, store, delta, number))
            return
        old = [*manifest.snapshot, *manifest.deltas]
        manifest.snapshot = [_put(manifest, store, piece, number) for piece in state.snapshot()]
        manifest.snapshot_leads_to = number
        manifest.deltas = []
        for written in old:
            store.remove_segment(written.segment)


@contextmanager
def _without_collection() -> Iterator[None]:
    """A step makes many objects that stay; looking among them for garbage takes as long as the step."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _put(manifest: StateManifest, store: Store, content: bytes, number: int) -> SegmentRef:
    segment = manifest.next_segment
    manifest.next_segment += 1
    store.put_segment(segment, content)
    return SegmentRef(segment, len(content), number)


def _read(store: Store, written: Iterable[SegmentRef]) -> Iterator[bytes]:
    for each in written:
        content = store.segment(each.segment)
        if content is None:
            msg = (
                f"state segment {each.segment} is named in the manifest and not in the store: the state is "
                "damaged; go back to a copy of the checkpoint, or start a new one"
            )
            raise StateError(msg)
        yield content


def _tell_attributes(
    state: KeyGroup, backlog: bool | None, items: Iterable[Packed], out: StepOutputs
) -> bool | None:
    """Changes alone: what is told again, after a restart for instance, is known."""
    for item in items:
        if item.kind == PackedKind.ATTRIBUTES and item.attributes.backlog != backlog:
            backlog = item.attributes.backlog
            state.attributes(item.attributes, out)
    return backlog


def _tell(state: KeyGroup, told: Told, out: StepOutputs) -> None:
    for element in told:
        match element:
            case WatermarkStatus():
                state.status(element, out)
            case Watermark(timestamp_ms):
                state.advance_watermark(timestamp_ms, out)
