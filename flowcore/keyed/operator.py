"""The contract of operators that keep their state by key group.

An operator is configuration, shipped to the workers; `open` makes a `KeyGroup`, the state of one group
in memory together with what is done to it. The runtime (`flowcore.keyed.runtime`) calls it and keeps its
state: what has changed as a *delta* behind each step, all of it as a *snapshot* now and then, and a small
*header* each time. Applying a delta again, or one that is older than what is there but followed by all newer
ones, must change nothing: a delta holds what is now, not what was added.

Nothing here knows Spark. Times are integer milliseconds since the epoch, UTC.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from flowcore.elements import LatencyMarker, RecordAttributes, WatermarkStatus

__all__ = ["Closing", "KeyGroup", "KeyGroupOperator", "StepOutputs", "SupportsFailureIsolation"]


@dataclass(slots=True)
class StepOutputs:
    """What one step of one key group puts out.

    Attributes:
        batches: ``(output, rows)`` in order.
        markers: Latency markers, which follow all rows: its operator, marked time and partition.
        bad: Bad messages that passed by, packed as they came.
        counters: How often something happened, for instance ``dropped_records``.
        gauges: How something stands after the step, for instance ``held_records``.
    """

    batches: list[tuple[str, pa.RecordBatch]] = field(default_factory=list)
    markers: list[LatencyMarker] = field(default_factory=list)
    bad: list[bytes] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    gauges: dict[str, int] = field(default_factory=dict)

    def rows(self, output: str, batch: pa.RecordBatch) -> None:
        """Put out rows."""
        if batch.num_rows:
            self.batches.append((output, batch))

    def count(self, what: str, times: int) -> None:
        """Something happened."""
        if times:
            self.counters[what] = self.counters.get(what, 0) + times


class KeyGroup(Protocol):
    """The state of one key group in memory.

    In each step the runtime calls `advance_clock` once, then `attributes` where they change, then `rows`,
    `advance_watermark`, `status` and `marker` in the order of the stream, then `finish`, then `delta` and
    `header`. An exception in between makes it forget the group and read it again from the store.

    Attributes:
        wake_ms: It wants a step at this time of the clock, though nothing may come; None if it does not.
    """

    @property
    def wake_ms(self) -> int | None: ...

    def advance_clock(self, clock_ms: int, out: StepOutputs, /) -> None:
        """The clock has come this far."""
        ...

    def attributes(self, attributes: RecordAttributes, out: StepOutputs, /) -> None:
        """What is true of the records that follow; told once for each change, also over restarts."""
        ...

    def rows(self, rows: pa.RecordBatch, out: StepOutputs, /) -> None:
        """Records have come, in order of arrival."""
        ...

    def advance_watermark(self, watermark_ms: int, out: StepOutputs, /) -> None:
        """Event time has come this far; always higher than before, also over restarts."""
        ...

    def status(self, status: WatermarkStatus, out: StepOutputs, /) -> None:
        """Watermarks are to be waited for, or not."""
        ...

    def marker(self, marker: LatencyMarker, out: StepOutputs, /) -> None:
        """A latency marker has come: put it out when what came before it is out."""
        ...

    def finish(self, out: StepOutputs, /, *, idle: bool) -> None:
        """The step ends; ``idle`` says that the sources had nothing at all."""
        ...

    def header(self) -> Mapping[str, Any]:
        """What is small and changes all the time, as JSON-able data."""
        ...

    def delta(self) -> bytes | None:
        """What has changed since the last `delta`, `snapshot` or `restore`; None if nothing has."""
        ...

    def snapshot(self) -> Iterator[bytes]:
        """All there is, in pieces of some MiB."""
        ...

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes], /) -> None:
        """Take a header with the pieces and deltas that lead to it, oldest first.

        Raises:
            StateError: They are of a version that this one does not read.
        """
        ...


class KeyGroupOperator(Protocol):
    """Configuration of an operator.

    Attributes:
        layout: A name for what is kept; state of another form is refused.
        outputs: The columns of each of its outputs.
    """

    @property
    def layout(self) -> str: ...

    @property
    def outputs(self) -> Mapping[str, pa.Schema]: ...

    def open(self) -> KeyGroup:
        """A key group without state."""
        ...


@runtime_checkable
class SupportsFailureIsolation(Protocol):
    """A key group that can take back single calls of users' functions."""

    def isolate_failures(self) -> bool:
        """Take the next step so that calls that fail are undone and leave as letters; False if it may not."""
        ...


@runtime_checkable
class Closing(Protocol):
    """An operator that opens something in a task, on its own, for all groups."""

    def close(self) -> None:
        """The task ends."""
        ...
