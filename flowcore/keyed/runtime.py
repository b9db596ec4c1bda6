"""Runs one step of one key group and stores its state.

The decoded state of a group is cached in the worker process, which Spark reuses for later batches. The cache
may be outdated: a group moves between workers, and tasks and batches are repeated after failures. So a step
removes the state from the cache before it begins, and puts it back when everything is written. A cached state
is reused if its position is in the store's manifest; missing changes are read from the deltas.

As long as no user's function fails, nothing is recorded for a rollback. If one fails and its record may
become a dead letter, the step is repeated from the stored state, and each call is isolated.

When the deltas are as large as the last snapshot, a new snapshot replaces them. So the amount that is written
depends on what changes and not on the size of the state.
"""

import gc
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from flowcore.elements import RecordAttributes, Watermark, WatermarkStatus
from flowcore.errors import FlowcoreError, StateError
from flowcore.keyed.columns import complete_batch, concat_batches
from flowcore.keyed.control import StepControl, decode_control
from flowcore.keyed.manifest import SegmentRef, StateManifest, StatePosition
from flowcore.keyed.operator import (
    Closing,
    EmitsControl,
    KeyGroup,
    KeyGroupOperator,
    StepOutputs,
    SupportsFailureIsolation,
)
from flowcore.keyed.packed import Packed, PackedKind, PackedRows, sort_packed
from flowcore.keyed.state_cache import StateCache
from flowcore.keyed.store import Store
from flowcore.watermarks.merge import Emitted
from flowcore.watermarks.progress import WatermarkProgress, WatermarkSource

__all__ = ["Runtime", "StepResult"]

_MOST_DELTAS = 200
_ACTIVE = WatermarkStatus(idle=False)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step.

    Attributes:
        outputs: The outputs.
        manifest: The manifest after the step.
    """

    outputs: StepOutputs
    manifest: StateManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Runs an operator of a query; sent to the workers.

    Attributes:
        operator: The operator.
        query: Identifies the operator's states in the cache of a worker.
        key_groups: The number of key groups, which is fixed for a checkpoint.
        sources: The inputs that have event time.
        rows: The columns of packed records.
        records: The columns that the operator receives; those that are not packed are null. None: the packed
            ones.
        name: The operator's name, by which its state is found.
        emits_control: Another operator with state is downstream and needs the control elements.
        reads_control: Its channels are the key groups of another operator with state.
        smallest_log_bytes: Deltas smaller than this are not replaced by a snapshot.
        max_cache_bytes: The budget of a worker for decoded states; None for no budget.
    """

    operator: KeyGroupOperator
    query: str
    key_groups: int
    sources: Mapping[str, WatermarkSource]
    rows: pa.Schema
    records: pa.Schema | None = None
    name: str = ""
    emits_control: bool = False
    reads_control: bool = False
    smallest_log_bytes: int = 256 << 10
    max_cache_bytes: int | None = None

    def step(
        self, group: int, items: Iterable[Packed], clock_ms: int, store: Store, cache: StateCache
    ) -> StepResult:
        """Process the input of a key group.

        Args:
            group: The number of the key group.
            items: Its input; empty if only processing time made the step necessary.
            clock_ms: Processing time, the same for all groups of a batch, also when the batch is repeated.
            store: The group's store.
            cache: The cache of this worker.

        Raises:
            StateError: Another version wrote the state, or it has another layout.
        """
        manifest = self._manifest(store)
        state = self._state(manifest, store, cache.pop(self.query, group))
        ordered = sort_packed(items)
        with _without_collection():
            try:
                event_time, backlog, out = self._process(state, manifest, ordered, clock_ms)
            except FlowcoreError:
                state = self._state(manifest, store, None)
                if not (isinstance(state, SupportsFailureIsolation) and state.isolate_failures()):
                    raise
                event_time, backlog, out = self._process(state, manifest, ordered, clock_ms)
            manifest.backlog = backlog
            self._write(manifest, state, store)
        manifest.header = state.header()
        manifest.event_time = event_time.snapshot()
        times = [time for time in (state.wake_ms, event_time.wake_ms(clock_ms)) if time is not None]
        manifest.wake_ms = max(min(times), clock_ms + 1) if times else None
        for name, times_counted in out.counters.items():
            manifest.counters[name] = manifest.counters.get(name, 0) + times_counted
        store.put_manifest(manifest.encode())
        size_bytes = (manifest.snapshot_bytes + manifest.delta_bytes) * self.operator.memory_factor
        kept = manifest.position, state
        cache.put(self.query, group, kept, size_bytes=size_bytes, max_bytes=self.max_cache_bytes)
        return StepResult(out, manifest)

    def read(self, store: Store) -> tuple[StateManifest, KeyGroup]:
        """Read the state of a key group.

        Raises:
            StateError: Another version wrote it, or it has another layout.
        """
        manifest = self._manifest(store)
        return manifest, self._state(manifest, store, None)

    def close(self) -> None:
        """Close the operator's resources; the next step opens them again."""
        if isinstance(self.operator, Closing):
            self.operator.close()

    def _manifest(self, store: Store) -> StateManifest:
        written = store.manifest()
        layout, key_groups = self.operator.layout, self.key_groups
        if written is None:
            return StateManifest(layout=layout, key_groups=key_groups)
        return StateManifest.decode(written, layout=layout, key_groups=key_groups)

    def _state(
        self, manifest: StateManifest, store: Store, known: tuple[StatePosition, KeyGroup] | None
    ) -> KeyGroup:
        if known is not None and known[0] in manifest.positions:
            position, state = known
            if manifest.snapshot_leads_to <= position.number:
                newer = [delta for delta in manifest.deltas if delta.leads_to > position.number]
                if position != manifest.position:
                    state.restore(manifest.header, _read_segments(store, newer))
                return state
        state = self.operator.open()
        if manifest.positions:
            state.restore(manifest.header, _read_segments(store, [*manifest.snapshot, *manifest.deltas]))
        return state

    def _process(
        self, state: KeyGroup, manifest: StateManifest, items: list[Packed], clock_ms: int
    ) -> tuple[WatermarkProgress, bool | None, StepOutputs]:
        event_time = WatermarkProgress(self.sources)
        out = StepOutputs()
        event_time.restore(manifest.event_time)
        state.advance_clock(clock_ms, out)
        control = decode_control(
            tuple(sorted((item.channel, item.payload) for item in items if item.kind == PackedKind.CONTROL))
        ).of(self.sources)
        backlog = self._change_backlog(state, manifest.backlog, control, out)
        self._process_items(state, event_time, control, items, clock_ms, out)
        return event_time, backlog, out

    def _process_items(  # noqa: PLR0917 - the state, then the input of the step
        self,
        state: KeyGroup,
        event_time: WatermarkProgress,
        control: StepControl,
        items: list[Packed],
        clock_ms: int,
        out: StepOutputs,
    ) -> None:
        rows = PackedRows(items, self.rows)

        def release(batches: list[pa.RecordBatch]) -> None:
            if batches:
                state.rows(complete_batch(concat_batches(batches), self.records or self.rows), out)

        for source, number, changes in event_time.follow(control.arrivals):
            if number >= 0:
                release(rows.take(control.places[source][number]))
            self._advance(state, changes, out)
        release(rows.take())
        for source, newest in control.newest.items():
            event_time.take(source, newest)
        self._advance(state, event_time.poll(clock_ms), out)
        for item in items:
            if item.kind == PackedKind.MARKER:
                state.marker(item.marker, out)
        self._finish(state, control, items, out)

    def _finish(
        self, state: KeyGroup, control: StepControl, items: Iterable[Packed], out: StepOutputs
    ) -> None:
        """End the step; the flush of a buffer is announced after all that it emitted."""
        if control.flushed and isinstance(state, EmitsControl):
            state.upstream_flushed()
        elif control.flushed:
            out.flushed = True
        idle = not control.newest
        if not self.reads_control:
            others = (item for item in items if item.kind != PackedKind.CONTROL)
            idle = idle and not (control.arrivals or any(others))
        state.finish(out, idle=idle)
        if self.emits_control and out.flushed:
            out.flush_event()

    def _change_backlog(
        self, state: KeyGroup, backlog: bool | None, control: StepControl, out: StepOutputs
    ) -> bool | None:
        """Pass backlog statuses on that differ from the last one; they are repeated after a restart."""
        for each in control.backlog:
            if each != backlog:
                backlog = each
                attributes = RecordAttributes(backlog)
                state.attributes(attributes, out)
                if self.emits_control and not isinstance(state, EmitsControl):
                    out.control(attributes)
        return backlog

    def _advance(self, state: KeyGroup, changes: Emitted, out: StepOutputs) -> None:
        """Advance event time; a watermark is emitted after the rows that it releases."""
        for element in changes:
            match element:
                case WatermarkStatus():
                    state.status(element, out)
                case Watermark(timestamp_ms):
                    state.advance_watermark(timestamp_ms, out)
            # An idle channel that has a buffer must hold the watermark before it is flushed.
            if self.emits_control and (element == _ACTIVE or not isinstance(state, EmitsControl)):
                out.control(element)
            elif not isinstance(state, EmitsControl):
                out.report(element)

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
    """Disable garbage collection: scanning the many new objects of a step takes as long as the step."""
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


def _read_segments(store: Store, written: Iterable[SegmentRef]) -> Iterator[bytes]:
    for each in written:
        content = store.segment(each.segment)
        if content is None:
            msg = (
                f"state segment {each.segment} is in the manifest but not in the store: the state is "
                "damaged; restore a copy of the checkpoint, or start a new one"
            )
            raise StateError(msg)
        yield content
