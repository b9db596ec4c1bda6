"""Run one step of one key group and store its state.

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
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from flowcore.backlog import BacklogProgress
from flowcore.elements import MIN_TIMESTAMP_MS, RecordAttributes, Watermark, WatermarkStatus
from flowcore.errors import FlowcoreError, StateError
from flowcore.failpoints import failpoint
from flowcore.keyed.columns import complete_batch, in_parts
from flowcore.keyed.control import QUERY, Place, StepControl, decode_control
from flowcore.keyed.manifest import SegmentRef, StateManifest, StatePosition
from flowcore.keyed.operator import KeyGroup, KeyGroupOperator, StepOutputs
from flowcore.keyed.packed import Packed, PackedKind, PackedRows
from flowcore.keyed.state_cache import StateCache
from flowcore.keyed.store import OperatorStore
from flowcore.watermarks.merge import Emitted, delay_watermark
from flowcore.watermarks.progress import WatermarkProgress, WatermarkSource

__all__ = ["Runtime", "StepResult"]

_MOST_DELTAS = 200
_BYTES_AT_ONCE = 1 << 30  # an Arrow array cannot hold 2 GiB of text or bytes
_ACTIVE = WatermarkStatus(idle=False)
_NOT_RECORDS = (PackedKind.CONTROL, PackedKind.MARKER)
_Switch = tuple[Place, RecordAttributes]


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step, and how long it took."""

    outputs: StepOutputs
    manifest: StateManifest
    busy_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Runs an operator of a query; sent to the workers.

    Attributes:
        query: Identifies the operator's states in the cache of a worker.
        key_groups: The number of key groups, which is fixed for a checkpoint.
        sources: The inputs that have event time.
        rows: The columns of packed records.
        records: The columns that the operator receives; those that are not packed are null. None: the packed
            ones.
        name: The operator's name, by which its state is found.
        emits_control: Another operator with state is downstream and needs the control elements.
        emits_attributes: A chain of functions downstream asks for the attributes of its outputs.
        reads_control: Its channels are the key groups of another operator with state.
        ignored_backlog: The sources whose backlog status does not count.
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
    emits_attributes: bool = False
    reads_control: bool = False
    ignored_backlog: frozenset[str] = frozenset()
    smallest_log_bytes: int = 256 << 10
    max_cache_bytes: int | None = None

    def step(
        self,
        group: int,
        items: Sequence[Packed],
        processing_time_ms: int,
        store: OperatorStore,
        cache: StateCache,
    ) -> StepResult:
        """Process the input of a key group, with the arguments of `Exchange.step`.

        Args:
            items: The operator's input in the order of processing (`sort_packed`).
            store: The operator's part of the group's store.

        Raises:
            StateError: Another version wrote the state, or it has another layout.
        """
        began_ns = time.perf_counter_ns()
        manifest = self._manifest(store)
        state = self._state(manifest, store, cache.pop(self.query, group))
        with _without_collection():
            try:
                event_time, backlog, out = self._process(state, manifest, items, processing_time_ms)
            except FlowcoreError:
                state = self._state(manifest, store, None)
                if not state.isolate_failures():
                    raise
                event_time, backlog, out = self._process(state, manifest, items, processing_time_ms)
            self._write(manifest, state, store)
        manifest.header = state.header()
        manifest.event_time = event_time.snapshot()
        manifest.backlog = backlog.snapshot()
        times = [time for time in (state.wake_ms, event_time.wake_ms(processing_time_ms)) if time is not None]
        manifest.wake_ms = max(min(times), processing_time_ms + 1) if times else None
        for name, times_counted in out.counters.items():
            manifest.counters[name] = manifest.counters.get(name, 0) + times_counted
        store.put_manifest(manifest.encode())
        size_bytes = (manifest.snapshot_bytes + manifest.delta_bytes) * self.operator.memory_factor
        kept = manifest.position, state
        cache.put(self.query, group, kept, size_bytes=size_bytes, max_bytes=self.max_cache_bytes)
        return StepResult(out, manifest, time.perf_counter_ns() - began_ns)

    def _manifest(self, store: OperatorStore) -> StateManifest:
        written = store.manifest()
        layout, key_groups = self.operator.layout, self.key_groups
        if written is None:
            return StateManifest(layout=layout, key_groups=key_groups)
        return StateManifest.decode(written, layout=layout, key_groups=key_groups)

    def _state(
        self, manifest: StateManifest, store: OperatorStore, known: tuple[StatePosition, KeyGroup] | None
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
        self, state: KeyGroup, manifest: StateManifest, items: Sequence[Packed], processing_time_ms: int
    ) -> tuple[WatermarkProgress, BacklogProgress, StepOutputs]:
        event_time, out = WatermarkProgress(self.sources), StepOutputs()
        event_time.restore(manifest.event_time)
        channels = {name: source.partitions for name, source in self.sources.items()}
        senders = {name: each.senders for name, each in self.sources.items() if each.senders is not None}
        backlog = BacklogProgress({**channels, QUERY: (QUERY,)}, self.ignored_backlog, senders)
        backlog.restore(manifest.backlog)
        if self.emits_attributes:
            out.attributes(RecordAttributes(bool(backlog.backlog)))
        state.advance_processing_time(processing_time_ms, out)
        control = decode_control(
            tuple(sorted((item.channel, item.payload) for item in items if item.kind == PackedKind.CONTROL))
        ).of(self.sources)
        rows = PackedRows(items, self.rows)
        # The changes of the combined backlog status, each with the place up to which records precede it.
        switches = deque(
            (place, attributes)
            for place, source, channel, status in control.backlog
            if (attributes := backlog.receive(source, channel, backlog=status))
        )
        for source, number, changes in event_time.follow(control.arrivals, control.newest):
            if number >= 0:
                self._release(state, rows, switches, out, up_to=control.place(source, number))
            self._advance(state, changes, out)
        self._release(state, rows, switches, out)
        for source, newest in control.newest.items():
            event_time.take(source, newest)
        self._advance(state, event_time.poll(processing_time_ms), out)
        for item in items:
            if item.kind == PackedKind.MARKER:
                state.marker(item.marker, out)
        self._finish(state, control, items, out)
        return event_time, backlog, out

    def _finish(
        self, state: KeyGroup, control: StepControl, items: Iterable[Packed], out: StepOutputs
    ) -> None:
        """End the step; the flush of a buffer is emitted after the records of the buffer."""
        if control.flushed:
            state.upstream_flushed(out)
        idle = not control.newest
        if not self.reads_control:
            others = (item for item in items if item.kind not in _NOT_RECORDS)
            idle = idle and not (control.arrivals or any(others))
        state.finish(out, idle=idle)
        if self.emits_control and out.flushed:
            out.flush_event()

    def _release(
        self, state: KeyGroup, rows: PackedRows, switches: deque[_Switch], out: StepOutputs, *,
        up_to: Place | None = None,
    ) -> None:  # fmt: skip
        """Process the records before a place, by default all, and the changes of backlog between them."""
        while switches and (up_to is None or switches[0][0] < up_to):
            place, attributes = switches.popleft()
            self._process_rows(state, rows.take(place), out)
            state.attributes(attributes, out)
            if self.emits_attributes:
                out.attributes(attributes)
            if self.emits_control and not state.emits_control:
                out.control(attributes)
        self._process_rows(state, rows.take(up_to), out)

    def _process_rows(self, state: KeyGroup, batches: list[pa.RecordBatch], out: StepOutputs) -> None:
        for part in in_parts(batches, sys.maxsize, _BYTES_AT_ONCE):
            state.rows(complete_batch(part, self.records or self.rows), out)

    def _advance(self, state: KeyGroup, changes: Emitted, out: StepOutputs) -> None:
        """Advance event time; a watermark is emitted after the rows that it releases."""
        for change in changes:
            element = change
            match change:
                case WatermarkStatus():
                    state.status(change, out)
                case Watermark(timestamp_ms):
                    state.advance_watermark(timestamp_ms, out)
                    element = Watermark(delay_watermark(timestamp_ms, self.operator.watermark_delay_ms))
                    if element.timestamp_ms == MIN_TIMESTAMP_MS:
                        continue
            # An idle channel that has a buffer must hold the watermark before it is flushed.
            if self.emits_control and (element == _ACTIVE or not state.emits_control):
                out.control(element)
            elif not state.emits_control:
                out.report(element)

    def _write(self, manifest: StateManifest, state: KeyGroup, store: OperatorStore) -> None:
        manifest.advance(secrets.token_hex(8))
        old = [*manifest.snapshot, *manifest.deltas]
        has_all = not old or state.has_changed_wholly
        delta = state.delta()
        if delta is None:
            return
        number = manifest.position.number
        full = manifest.delta_bytes + len(delta) > max(manifest.snapshot_bytes, self.smallest_log_bytes)
        if not full and len(manifest.deltas) < _MOST_DELTAS:
            manifest.deltas.append(_put(manifest, store, delta, number))
            return
        pieces = [delta] if has_all else state.snapshot()
        manifest.snapshot = [_put(manifest, store, piece, number) for piece in pieces]
        failpoint("state-snapshot")
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


def _put(manifest: StateManifest, store: OperatorStore, content: bytes, number: int) -> SegmentRef:
    segment = manifest.next_segment
    manifest.next_segment += 1
    store.put_segment(segment, content)
    return SegmentRef(segment, len(content), number)


def _read_segments(store: OperatorStore, written: Iterable[SegmentRef]) -> Iterator[bytes]:
    for each in written:
        content = store.segment(each.segment)
        if content is None:
            msg = (
                f"state segment {each.segment} is in the manifest but not in the store: the state is "
                "damaged; restore a copy of the checkpoint, or start a new one"
            )
            raise StateError(msg)
        yield content
