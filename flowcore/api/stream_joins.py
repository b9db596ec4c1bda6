"""Joins of two streams by event time: partners have equal keys, and close times or the same window."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Protocol

from flowcore.api.connectors import ADDED_LATER
from flowcore.api.decisions import Decision, Obstacle
from flowcore.api.event_time_operator import emitted_by_watermark
from flowcore.api.expressions import Expression
from flowcore.api.node import Operator, Origins, trace_each, trace_pairs
from flowcore.api.schema import Schema
from flowcore.api.stateful import LATE_LEFT_OUTPUT, LATE_RIGHT_OUTPUT, StatefulOperator, late_outcome
from flowcore.durations import show_ms
from flowcore.windows.config import LateRecords

__all__ = [
    "JOIN_WINDOW_COLUMNS",
    "JoinAsOf",
    "JoinInterval",
    "JoinWindow",
    "JoinWithLateness",
    "StreamJoin",
    "StreamJoinType",
    "join_types",
    "show_length",
]

StreamJoinType = Literal["inner", "left", "right", "full", "semi", "anti"]
JOIN_WINDOW_COLUMNS = ("window_start", "window_end")
"""The last columns of the output of a window join: TIMESTAMPs."""


class _Joined(Protocol):
    """Any join of two inputs."""

    @property
    def inputs(self) -> tuple[Operator, ...]: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def on(self) -> tuple[tuple[str, str], ...]: ...
    @property
    def how(self) -> str: ...


def join_types(join: _Joined) -> dict[str, str]:
    """The types of the columns of a join that declarations say."""
    left, right = join.inputs
    kept = {column.lower() for column in left.columns}
    others = {column.lower() for column in join.columns} - kept
    # A row that only the right side has takes its key from there, in a type for both.
    kept -= {column.lower() for column, _ in join.on} if join.how in ("right", "full") else set()
    sides = ((left.types(), kept), (right.types(), others))
    return {name: kind for types, names in sides for name, kind in types.items() if name in names}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StreamJoin(StatefulOperator):
    """Pairs of a left and a right record, and unmatched records of the sides that are kept.

    Its columns begin with those of the left, then those of the right without the ones joined on.

    Attributes:
        by: The left columns joined on.
        on: Pairs of a left column and the right column that must be equal.
        how: Whose unmatched records are kept.
        late: What becomes of late records.
        timestamps: Of bounded inputs, the times of a left and of a right row: BIGINT milliseconds or
            TIMESTAMP. None for streams, whose records have theirs.
    """

    by: tuple[str, ...]
    on: tuple[tuple[str, str], ...]
    how: StreamJoinType
    late: LateRecords = "drop"
    uses: tuple[str, ...] = ()
    timestamp: Expression | None = None
    timestamps: tuple[Expression, Expression] | None = field(default=None, metadata=ADDED_LATER)

    @property
    def partners(self) -> str:
        """Which records are partners, besides their keys, in words."""
        raise NotImplementedError

    @property
    def retention(self) -> str:
        """How long records are kept, in words."""
        raise NotImplementedError

    @property
    def lateness(self) -> str:
        """How late records may be, in words after a comma; empty if no late record is joined."""
        return ""

    def own_attributes(self) -> Mapping[str, bool]:
        return Operator.own_attributes(self)

    def describe(self) -> str:
        pairs = ", ".join(left if left == right else f"{left} = {right}" for left, right in self.on)
        which = "later" if self.lateness else "late"
        leaves = self.late == "side-output" and not self.bounded  # no row of a bounded input is late
        late = f", {which} records to side outputs" if leaves else ""
        return f"{self.how} join on {pairs}, {self.partners}{self.lateness}{late}"

    def reads(self, used: Collection[str]) -> Collection[str]:
        times = (column for time in self.timestamps or () for column in time.columns)
        return {*used, *(column for pair in self.on for column in pair), *times}

    def state_values(self) -> str:
        return f"rows of both sides, {self.how}, {self.partners}"

    def side_columns(self, side: int, used: Collection[str]) -> list[str]:
        """The columns of the left (0) or right (1) input in the output, besides the key, that are used."""
        joined = {pair[side].lower() for pair in self.on}  # a left column may have the name of a right one
        own = {name.lower() for name in self.inputs[side].columns} - joined
        return [name for name in self.columns if name.lower() in own.intersection(used)]

    def stored_columns(self, used: Collection[str]) -> tuple[str, ...]:
        sides = (0, 1) if self.how not in ("semi", "anti") else (0,)
        return tuple(name for side in sides for name in self.side_columns(side, used))

    def lineage(self, known: Mapping[Operator, Origins]) -> Origins:
        left, right = self.origins(known)
        # A record that only the right side has takes its key from there.
        keys = trace_pairs([left, right] if self.how in ("right", "full") else [left], self.on)
        own = {**trace_each([right], self.columns), **trace_each([left], self.inputs[0].columns)}
        return {**own, **keys}

    def types(self) -> Mapping[str, str]:
        return join_types(self)

    def compiled(self) -> Decision:
        """``"native"``: Spark's own join. ``"key-group"``: Python over columns, with state."""
        if self.bounded:
            return Decision("native", ("both inputs end, and Spark can compare keys and times of all rows",))
        why = "it compares the records of a key on both sides, with whole columns"
        return Decision("key-group", (why, self.retention))

    def own_emission(self) -> Decision:
        return Operator.own_emission(self) if self.bounded else self.live_emission()

    def live_emission(self) -> Decision:
        """When it emits over unbounded input."""
        if self.how in ("inner", "semi"):
            return Decision("when partners have met", ("it keeps no unmatched records",))
        why = "an unmatched record is emitted when the watermark of both sides rules a partner out"
        return emitted_by_watermark(self, "when partners have met or cannot come", why)

    def late_records(self) -> Decision | None:
        return None if self.bounded else late_outcome(self.late, "side outputs")

    def flush_obstacle(self) -> Obstacle:
        return Obstacle("no pair of records replaces another one")

    def checkpoint_obstacle(self) -> Obstacle:
        return Obstacle("the watermark decides when it emits unmatched records")

    def side_outputs_by_name(self) -> Mapping[str, tuple[tuple[str, ...], Schema | None]]:
        if self.late == "drop":
            return {}
        names = (LATE_LEFT_OUTPUT, LATE_RIGHT_OUTPUT)
        return {name: (side.columns, None) for name, side in zip(names, self.inputs, strict=True)}

    @property
    def needs_timestamps(self) -> bool:
        return not self.bounded


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class JoinWithLateness(StreamJoin):
    """Pairs are emitted when both records have arrived, so that late records may still be joined.

    Attributes:
        allowed_lateness_ms: How far behind the watermark a record may be, in milliseconds, without being
            late. Records are kept, unmatched records wait, and the emitted watermark is older by as much.
    """

    allowed_lateness_ms: int = field(default=0, metadata=ADDED_LATER)

    @property
    def lengths_ms(self) -> tuple[int, int]:
        """How much earlier and how much later a right record is at most than the left one."""
        raise NotImplementedError

    @property
    def lateness(self) -> str:
        if self.bounded or not self.allowed_lateness_ms:
            return ""
        return f", late by up to {show_ms(self.allowed_lateness_ms)}"

    def live_emission(self) -> Decision:
        found = StreamJoin.live_emission(self)
        if not self.allowed_lateness_ms:
            return found
        length = show_ms(self.allowed_lateness_ms)
        why = f"its watermark is {length} older, so that pairs of late records are not late downstream"
        return replace(found, reasons=(*found.reasons, why))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class JoinInterval(JoinWithLateness):
    """Partners have timestamps that are close.

    Attributes:
        before_ms: How much earlier than the left record a right one is at most.
        after_ms: How much later than the left record a right one is at most.
    """

    state_kind: ClassVar[str] = "interval-join"

    before_ms: int
    after_ms: int

    @property
    def partners(self) -> str:
        ends = ((self.before_ms, "before"), (self.after_ms, "after"))
        parts = [f"up to {show_length(length_ms)} {word}" for length_ms, word in ends if length_ms]
        return f"right {' and '.join(parts)} left" if parts else "right at the time of left"

    @property
    def lengths_ms(self) -> tuple[int, int]:
        return self.before_ms, self.after_ms

    @property
    def retention(self) -> str:
        right, left = (show_length(length_ms + self.allowed_lateness_ms) for length_ms in self.lengths_ms)
        return f"it keeps a left record until the watermark is {left} past it, and a right one {right}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class JoinWindow(JoinWithLateness):
    """Partners are in the same tumbling window; the last columns are `JOIN_WINDOW_COLUMNS`.

    Attributes:
        size_ms: The length of a window.
        offset_ms: Shifts every boundary.
    """

    state_kind: ClassVar[str] = "window-join"

    size_ms: int
    offset_ms: int = 0

    @property
    def partners(self) -> str:
        offset = f" from {show_length(self.offset_ms)}" if self.offset_ms else ""
        return f"in tumbling windows of {show_length(self.size_ms)}{offset}"

    @property
    def lengths_ms(self) -> tuple[int, int]:
        return 0, 0  # of the last milliseconds of their windows

    @property
    def retention(self) -> str:
        lateness_ms = self.allowed_lateness_ms
        reached = f"is {show_ms(lateness_ms)} past" if lateness_ms else "reaches"
        return f"it keeps a record until the watermark {reached} the end of its window"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class JoinAsOf(StreamJoin):
    """The partner of a left record is the newest right one at its time; ``how`` is ``inner`` or ``left``.

    Attributes:
        tolerance_ms: How much earlier than the left record a right one is at most; None for any time.
    """

    state_kind: ClassVar[str] = "as-of-join"

    tolerance_ms: int | None = None

    @property
    def partners(self) -> str:
        within = "" if self.tolerance_ms is None else f", at most {show_length(self.tolerance_ms)} before it"
        return f"newest right up to left{within}"

    @property
    def retention(self) -> str:
        until = "for ever"
        if self.tolerance_ms is not None:
            until = f"until the watermark is {show_length(self.tolerance_ms)} past it"
        left = "a left record until the watermark reaches it"
        return f"it keeps {left}, and the newest right one of each key {until}"

    def live_emission(self) -> Decision:
        why = "no right record up to the time of a left one can come after the watermark of both sides"
        return emitted_by_watermark(self, "when the watermark reaches the left record", why)

    def checkpoint_obstacle(self) -> Obstacle:
        return Obstacle("the watermark decides when it emits")

    def unbounded_state(self) -> Decision | None:
        if self.bounded or self.tolerance_ms is not None:
            return None
        why = "without tolerance= the newest right record of every key is kept for ever"
        return Decision("unbounded", (why,), ("declare tolerance= a time after which it need not be found",))


def show_length(length_ms: int) -> str:
    """The text of a length of time in milliseconds, also of none."""
    return show_ms(length_ms) if length_ms else "0 s"
