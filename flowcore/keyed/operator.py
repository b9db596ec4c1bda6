"""The contract of operators with state by key group.

An operator is configuration that is sent to the workers. `open` creates a `KeyGroup`: the state of one group
in memory, with the methods that process it. The runtime (`flowcore.keyed.runtime`) calls these and stores the
state: changes as a *delta* after each step, all of it as a *snapshot* when deltas have grown, and a small
*header* each time. A delta contains new values, not differences: applying it again, or applying an older one
and all that followed it, must change nothing.

Times are integer milliseconds since the epoch, UTC.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flowcore.elements import LatencyMarker, RecordAttributes, StreamElement, WatermarkStatus
from flowcore.keyed.emitted import Report, add_to_report
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TaggedSerializer

__all__ = [
    "ATTRIBUTES",
    "CONTROL",
    "CONTROL_ROWS",
    "FLUSH_EVENT",
    "KeyGroup",
    "KeyGroupOperator",
    "StepOutputs",
]

CONTROL = "_control"
"""The output of control elements for the next operator."""
ATTRIBUTES = "_attributes"
"""The output with the backlog status of the outputs after it, for chains of functions downstream."""
CONTROL_ROWS = pa.schema([pa.field("element", pa.binary())])
FLUSH_EVENT = b"\xff"
"""The control element for the flush of a buffer in this step; no tagged element begins with it."""
_ELEMENTS: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())


@dataclass(slots=True)
class StepOutputs:
    """The outputs of one step of one key group.

    Attributes:
        batches: ``(output, rows)`` in order.
        markers: Latency markers, which follow all rows.
        counters: Numbers of events in the step, for instance ``dropped_records``.
        gauges: Values after the step, for instance ``buffered_records``.
        flushed: A buffer has emitted records, this operator's or one upstream of it.
        emitted: The latest watermark and status.
    """

    batches: list[tuple[str, pa.RecordBatch]] = field(default_factory=list)
    markers: list[LatencyMarker] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    gauges: dict[str, int] = field(default_factory=dict)
    flushed: bool = False
    emitted: Report = field(default_factory=dict)

    def rows(self, output: str, batch: pa.RecordBatch) -> None:
        """Emit rows."""
        if batch.num_rows:
            self.batches.append((output, batch))

    def control(self, element: StreamElement[Any]) -> None:
        """Emit a control element for the next operator and for sinks, downstream of the rows before it."""
        self.report(element)
        self._control(_ELEMENTS.encode(element))

    def report(self, element: StreamElement[Any]) -> None:
        """Emit a control element for sinks only."""
        add_to_report(self.emitted, element)

    def attributes(self, attributes: RecordAttributes) -> None:
        """Set the attributes of the rows that follow, for chains of functions."""
        self._control(_ELEMENTS.encode(attributes), ATTRIBUTES)

    def flush_event(self) -> None:
        """Emit `FLUSH_EVENT` for the next operator."""
        self._control(FLUSH_EVENT)

    def count(self, name: str, times: int) -> None:
        """Increase a counter."""
        if times:
            self.counters[name] = self.counters.get(name, 0) + times

    def reject(
        self, output: str, rows: pa.RecordBatch, late: npt.NDArray[np.bool_], columns: Sequence[str] | None
    ) -> None:
        """Count the late rows, and emit these columns of them; None drops them."""
        self.count("dropped_records" if columns is None else "late_records", int(late.sum()))
        if columns:
            self.rows(output, rows.filter(pa.array(late)).select(list(columns)))

    def _control(self, element: bytes, output: str = CONTROL) -> None:
        content = pa.array([element], pa.binary())
        self.batches.append((output, pa.record_batch([content], schema=CONTROL_ROWS)))


class KeyGroup:
    """The state of one key group in memory; a base class.

    In each step the runtime calls `advance_processing_time` once, then `attributes`, `rows`,
    `advance_watermark`, `status` and `marker` in the order of the stream, then `finish`, then `delta` and
    `header`. After an exception it discards the group and reads it from the store again.
    """

    emits_control: ClassVar[bool] = False
    """It buffers its output, and emits control elements itself, in order with its records."""

    @property
    def wake_ms(self) -> int | None:
        """The processing time at which a step is necessary even without input; None if there is none."""
        return None

    def advance_processing_time(self, processing_time_ms: int, out: StepOutputs) -> None:
        """Processing time advances."""

    def attributes(self, attributes: RecordAttributes, out: StepOutputs) -> None:
        """The attributes of later records change; called once for each change, also over restarts."""

    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:
        """Process records, in order of arrival."""
        raise NotImplementedError

    def advance_watermark(self, watermark_ms: int, out: StepOutputs) -> None:
        """The watermark advances; it is always higher than before, also over restarts."""
        raise NotImplementedError

    def status(self, status: WatermarkStatus, out: StepOutputs) -> None:
        """The input becomes idle or active."""

    def marker(self, marker: LatencyMarker, out: StepOutputs) -> None:
        """Emit a latency marker after the outputs of all input before it."""
        out.markers.append(marker)

    def finish(self, out: StepOutputs, *, idle: bool) -> None:
        """The step ends; ``idle`` if there was no input at all, for no key group."""

    def upstream_flushed(self, out: StepOutputs) -> None:
        """A buffer upstream was flushed: its records are in this step."""
        out.flushed = True

    def isolate_failures(self) -> bool:
        """In the next step, roll failing calls back and emit dead letters; False if that is not allowed."""
        return False

    def header(self) -> Mapping[str, Any]:
        """The small part of the state that is written in each step, as JSON-able data."""
        raise NotImplementedError

    @property
    def has_changed_wholly(self) -> bool:
        """Whether the next `delta` has the whole state, so that it can stand for a `snapshot`."""
        return False

    def delta(self) -> bytes | None:
        """The changes since the last `delta`, `snapshot` or `restore`; None if there are none."""
        raise NotImplementedError

    def snapshot(self) -> Iterator[bytes]:
        """The whole state, in pieces of some MiB."""
        raise NotImplementedError

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
        """Apply a header with its snapshot and deltas, oldest first.

        Raises:
            StateError: This version cannot read them.
        """
        raise NotImplementedError


class KeyGroupOperator:
    """Configuration of an operator; a base class.

    Attributes:
        layout: Describes the state; state with a different layout cannot be restored.
        memory_factor: Approximate bytes of decoded state in memory for a byte in the store.
        watermark_delay_ms: How much older than the arriving watermark its records are at most; the emitted
            watermark is reduced by it.
    """

    __slots__ = ()

    @property
    def memory_factor(self) -> int:
        raise NotImplementedError

    @property
    def layout(self) -> str:
        raise NotImplementedError

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        raise NotImplementedError

    @property
    def watermark_delay_ms(self) -> int:
        return 0

    def open(self) -> KeyGroup:
        """A key group without state."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the resources of a worker when it ends; in a bounded stage, when its task ends."""
