"""Streams and state by key: windows, keyed process functions, and what leaves them beside their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from flowcore.api import windowed as declare
from flowcore.api.attributes import Attributes, collect_declared
from flowcore.api.operators import Operator, SideOutput
from flowcore.api.schema import Schema
from flowcore.api.stateful import LATE, side_columns
from flowcore.api.window_assigners import Length, WindowDeclaration
from flowcore.api.windowed import WindowedStream
from flowcore.process import KeyedProcessFunction
from flowcore.windows import Evictor
from flowcore.windows.config import LateRecords, WindowTime
from flowcore.windows.triggers import Trigger

if TYPE_CHECKING:
    from flowcore.api.flow import Flow
    from flowcore.api.stream import Stream

__all__ = ["KeyedStream"]


class KeyedStream:
    """What can be put behind a stream that keeps state by key group; see `Stream`."""

    _flow: Flow
    operator: Operator

    def window(
        self,
        windows: WindowDeclaration,
        *,
        by: str | Sequence[str] = (),
        trigger: Trigger | None = None,
        evictor: Evictor | None = None,
        allowed_lateness: Length = 0,
        late: LateRecords = "drop",
        time: WindowTime = "event",
        timestamp: str | None = None,
        uses: Sequence[str] | None = None,
        flush: timedelta | None = None,
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> WindowedStream:
        """Group records by time; say with `WindowedStream.aggregate` and others what each window emits.

        Args:
            windows: `Tumbling`, `Sliding`, `Session`, `Global`, `EndOfStream`, or an assigner of your own.
            by: Column or columns of the key; none for one key for all.
            trigger: When a window emits (see `flowcore.windows.triggers`); default: at its end.
            evictor: Which records are let go when it emits (see `flowcore.windows`).
            allowed_lateness: How long after its end records still count in a window, each emitting anew;
                seconds or `timedelta`.
            late: ``"drop"`` (and count) records that come later, or ``"side-output"``: `late` has them.
            time: ``"event"``: by the records' timestamps and watermarks. ``"processing"``: by the clock.
            timestamp: Bounded input only: column or expression of a row's time, BIGINT milliseconds or
                TIMESTAMP.
            uses: The columns that Python functions in it read; default: all.
            flush: Of an unbounded input, how long results may be held back, so that only the latest of each
                key and window leaves; as for `aggregate`.
            name: Name of the operator.
            attributes: What it promises beside what it says of itself.

        Raises:
            PlanError: A column is unknown, or the windows would never emit: the source sets no watermarks,
                say.
            InvalidWindowError: The parameters contradict each other.
        """
        return declare.window(
            self._flow, self.operator, name, windows,
            by=by, trigger=trigger, evictor=evictor, allowed_lateness=allowed_lateness, late=late, time=time,
            timestamp=timestamp, uses=uses, given=collect_declared(attributes), flush=flush,
        )  # fmt: skip

    def process(
        self,
        function: KeyedProcessFunction,
        *,
        schema: Schema | str,
        by: str | Sequence[str] = (),
        side_outputs: Mapping[str, Schema | str] | None = None,
        timestamp: str | None = None,
        uses: Sequence[str] | None = None,
        flush: timedelta | None = None,
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Stream:
        """A Python function with state and timers for each key.

        Args:
            function: What is done with records and timers; see `KeyedProcessFunction`.
            schema: The columns of the records it puts out, as Spark DDL.
            by: Column or columns of the key; none for one key for all.
            side_outputs: Name to schema of what else it puts out; `side_output` has it.
            timestamp: Bounded input only: as for `window`.
            uses: The columns that it reads; default: all.
            flush: Of an unbounded input, how long what it puts out may be held back, so that only the latest
                of each key leaves, if it declares ``is_output_idempotent``; as for `aggregate`.
            name: Name of the operator.
            attributes: What it promises, beside what the function declares.

        Raises:
            PlanError: A column is unknown, or it is no such function.
        """
        name = name or self._flow.free_name("process")
        return self._flow.add(
            declare.keyed_process(
                self.operator, name, function,
                schema=schema, by=by, side_outputs=side_outputs or {}, timestamp=timestamp, uses=uses,
                given=collect_declared(attributes), flush=flush,
            )
        )  # fmt: skip

    def side_output(self, output: str) -> Stream:
        """What leaves a window or a process function beside its results.

        Raises:
            PlanError: There is no side output of this name.
        """
        node = self.operator
        for each in self._flow.operators:
            if isinstance(each, SideOutput) and each.inputs == (node,) and each.output == output:
                return self._flow.stream(each)
        columns, schema = side_columns(node, output)
        return self._flow.add(
            SideOutput(
                name=f"{node.name}.{output}", inputs=(node,), columns=columns, bounded=node.bounded,
                output=output, schema=schema,
            )
        )  # fmt: skip

    @property
    def late(self) -> Stream:
        """The records that came too late for all their windows, with the columns of the windows' input.

        Raises:
            PlanError: It is not the result of windows with ``late="side-output"``.
        """
        return self.side_output(LATE)
