"""Streams: joins with another stream."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from types import EllipsisType
from typing import Any, Literal, Self, get_args

from flowcore.api import checks, join_checks, type_checks
from flowcore.api.attributes import Attributes
from flowcore.api.keyed_stream import KeyedStream
from flowcore.api.operators import (
    Join,
    JoinAsOf,
    JoinInterval,
    JoinLatest,
    JoinType,
    JoinWindow,
    Operator,
)
from flowcore.api.regular_join import build_regular_join, find_own_columns
from flowcore.api.resolution import resolve_join
from flowcore.api.stateful import LATE_LEFT_OUTPUT, LATE_RIGHT_OUTPUT
from flowcore.api.stream_joins import JOIN_WINDOW_COLUMNS, StreamJoinType
from flowcore.api.updating_rows import find_replacing, require_replaced
from flowcore.api.window_assigners import Length, Tumbling, build_assigner
from flowcore.windows import TumblingWindows
from flowcore.windows.config import LateRecords, require_late

__all__ = ["JoiningStream"]

_Hidden = tuple[Collection[str], Collection[str]]


class JoiningStream(KeyedStream):
    """The methods of `Stream` that join it with another stream."""

    def join(
        self,
        other: Self,
        *,
        on: str | Sequence[str] | Mapping[str, str],
        how: JoinType = "inner",
        ttl: timedelta | EllipsisType | None = ...,
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Self:
        """Join with another stream on equal columns, whatever their times.

        The output has the columns of the left, then those of the right without the ones joined on.
        A bounded stream that is joined to an unbounded one is read to its end first, before any record of
        the unbounded stream. Two unbounded streams are joined as their records arrive; a pair has no
        timestamp, and a null in a column joined on equals nothing. If ``how`` has records without partner,
        they are emitted at once, and deleted when a partner arrives: the output is updating by its column
        ``row_id``, and the last column, ``is_deleted``, is true where a row is deleted. `write` makes a
        tombstone of it. The same holds for every ``how`` if rows of a side replace or delete earlier rows:
        the output is the join of the last rows.

        Args:
            on: Column, columns, or ``{left column: right column}`` that must be equal.
            how: ``inner``, ``left``, ``semi`` or ``anti``; with a bounded left, or two unbounded streams,
                also ``right``, ``full``.
            ttl: Only of two unbounded streams, and needed there: how long after its arrival a record is
                kept for partners, in processing time; None for ever.

        Raises:
            PlanError: A column is unknown or on both sides, only the right side is unbounded, ``how``
                needs the end of an unbounded side, ``ttl`` is missing or has no meaning, or a row of an
                unbounded side that replaces another one may be dropped.
        """
        name = name or self.graph.free_name("join")
        self._require_same_flow(other, name)
        left, right = self.operator, other.operator
        if not left.bounded and not right.bounded:
            ttl_ms = checks.ttl_ms(name, checks.require_ttl(name, ttl))
            fields = self._join_fields(
                other, name, on, how, get_args(JoinType), attributes, needs=None, replaced="retracted"
            )
            *changes, join = build_regular_join(fields, ttl_ms)
            for each in changes:
                self.append(each)
            return self.append(join)
        checks.require_join(left, right, name, how, ttl)
        fields = self._pair_fields(other, name, on, how, attributes)
        fields["key"] = left.key if find_replacing(left) is not None else None
        return self.append(Join(**fields))

    def join_interval(
        self,
        other: Self,
        *,
        on: str | Sequence[str] | Mapping[str, str],
        before: timedelta,
        after: timedelta,
        how: Literal["inner", "left", "right", "full"] = "inner",
        timestamps: tuple[str, str] | None = None,
        allowed_lateness: Length = 0,
        late: LateRecords = "drop",
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Self:
        """Join two streams, or two tables, on equal columns, for records that are close in event time.

        The output has the columns of the left, then those of the right without the ones joined on. The
        timestamp of a pair is the later one of both records. A null in a column joined on equals nothing.

        Args:
            on: Column, columns, or ``{left column: right column}`` that must be equal. Their types are the
                same on both sides.
            before: How much earlier than the left record a right one is at most, inclusive.
            after: How much later than the left record a right one is at most, inclusive.
            how: ``inner``; ``left``, ``right`` or ``full`` also emit the records of that side, or both, that
                have no partner: when the combined watermark of both sides has passed their interval, with
                their own timestamp. The emitted watermark is delayed by ``after`` for left records, and by
                ``before`` for right ones.
            timestamps: Bounded inputs only, and needed there: columns or expressions of the time of a left
                and of a right row, BIGINT milliseconds or TIMESTAMP.
            allowed_lateness: How far behind the combined watermark a record may be and still find its
                partners, exclusive; seconds or `timedelta`. Records are kept, and those without partner wait,
                for as much longer. The emitted watermark is delayed by as much, for every ``how``.
            late: ``"drop"`` (and count) records that are farther behind, by default those up to the combined
                watermark, or ``"side-output"``: see `late_left` and `late_right`.

        Raises:
            PlanError: A column is unknown or on both sides, one side is bounded and the other is not, a side
                has no timestamps, no watermarks or records that replace earlier ones, or an end of the
                interval or the lateness is negative or endless.
            InvalidWindowError: The lateness is not a number of whole milliseconds, or ``late`` is not one of
                the two.
        """
        name = name or self.graph.free_name("join_interval")
        require_late(late, name)
        kinds = ("inner", "left", "right", "full")
        fields = self._join_fields(
            other, name, on, how, kinds, attributes, by_time=True, timestamps=timestamps
        )
        return self.append(
            JoinInterval(
                **fields, late=late, before_ms=join_checks.parse_interval(name, "before", before),
                after_ms=join_checks.parse_interval(name, "after", after),
                allowed_lateness_ms=join_checks.parse_allowed_lateness(name, allowed_lateness),
            )
        )  # fmt: skip

    def join_window(
        self,
        other: Self,
        windows: Tumbling,
        *,
        on: str | Sequence[str] | Mapping[str, str],
        how: StreamJoinType = "inner",
        timestamps: tuple[str, str] | None = None,
        allowed_lateness: Length = 0,
        late: LateRecords = "drop",
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Self:
        """Join two streams, or two tables, on equal columns, for records in the same window of event time.

        The output has the columns of the left, those of the right without the ones joined on (none if ``how``
        is ``semi`` or ``anti``), then ``window_start`` and ``window_end``. Its timestamp is the last
        millisecond of the window. A null in a column joined on equals nothing.

        Args:
            windows: `Tumbling`.
            on: As for `join_interval`.
            how: ``inner``, ``left``, ``right``, ``full``, ``semi`` or ``anti``. Pairs are emitted when both
                records have arrived, records without partner when the window has ended and its lateness is
                over.
            timestamps: As for `join_interval`.
            allowed_lateness: How long after its end a window still accepts records, in event time; seconds or
                `timedelta`. Only the new pairs are emitted. The emitted watermark is delayed by as much.
            late: As for `join_interval`; a record is late if its window has ended and the lateness is over.

        Raises:
            PlanError: As for `join_interval`, or the windows are not tumbling.
            InvalidWindowError: As for `join_interval`.
        """
        name = name or self.graph.free_name("join_window")
        require_late(late, name)
        kinds = get_args(StreamJoinType)
        fields = self._join_fields(
            other, name, on, how, kinds, attributes, by_time=True, timestamps=timestamps
        )
        assigner = build_assigner(windows, name)
        if type(assigner) is not TumblingWindows:
            checks.refuse(
                f"operator {name!r}: {windows!r}: a pair would be in several windows, or in none; pass "
                "Tumbling(...)"
            )
        fields["columns"] += JOIN_WINDOW_COLUMNS
        checks.require_distinct(name, fields["columns"])
        return self.append(
            JoinWindow(
                **fields, late=late, size_ms=assigner.size_ms, offset_ms=assigner.offset_ms,
                allowed_lateness_ms=join_checks.parse_allowed_lateness(name, allowed_lateness),
            )
        )  # fmt: skip

    def join_asof(
        self,
        other: Self,
        *,
        on: str | Sequence[str] | Mapping[str, str],
        direction: Literal["backward"] = "backward",
        tolerance: timedelta | None = None,
        how: Literal["inner", "left"] = "inner",
        timestamps: tuple[str, str] | None = None,
        late: LateRecords = "drop",
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Self:
        """Join each record with the newest record of another stream, or table, at its event time.

        The partner is the right record with equal columns and the latest timestamp up to that of the left
        record; of equal timestamps the last to arrive, of bounded input the last in order of the other
        columns. Of streams, the left record is emitted, with or without a
        partner, when the watermark of both sides reaches it. The output has the columns of the left, then
        those of the right without the ones joined on, and the timestamp of the left. A null in a column
        joined on equals nothing.

        Args:
            on: As for `join_interval`.
            direction: ``backward``, the only direction: the right record is not later than the left record.
            tolerance: How much earlier than the left record a right one is at most, inclusive. None for any
                time; then the newest right record of each key is kept for ever.
            how: ``inner``; ``left`` also emits left records without partner, with nulls.
            timestamps: As for `join_interval`.
            late: As for `join_interval`.

        Raises:
            PlanError: As for `join_interval`, or the direction is not ``backward``.
            InvalidWindowError: ``late`` is not one of the two.
        """
        name = name or self.graph.free_name("join_asof")
        require_late(late, name)
        join_checks.require_backward(name, direction)
        kinds = ("inner", "left")
        fields = self._join_fields(
            other, name, on, how, kinds, attributes, by_time=True, timestamps=timestamps
        )
        tolerance_ms = None if tolerance is None else join_checks.parse_interval(name, "tolerance", tolerance)
        return self.append(JoinAsOf(**fields, late=late, tolerance_ms=tolerance_ms))

    def join_latest(
        self,
        other: Self,
        *,
        on: str | Sequence[str] | Mapping[str, str],
        how: Literal["inner", "left"] = "inner",
        load: Literal["caught-up"] | datetime | None = "caught-up",
        ttl: timedelta | None = None,
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Self:
        """Join each record, when it arrives, with the latest arrived record of another unbounded stream.

        The output has the columns of the left, then those of the right without the ones joined on, and the
        timestamp of the left. A null in a column joined on equals nothing. No record is late. If the right
        side is a source with ``updating_by``, a key that is deleted has no partner.

        Args:
            on: As for `join_interval`; of a right side with ``updating_by`` all of these columns.
            how: ``inner``; ``left`` also emits left records without partner, with nulls.
            load: When the right side is loaded. Until then left records, and the emitted watermark, wait in
                the state. ``"caught-up"``: the watermark of both sides has reached the time at which the
                query first began. A time with its zone: the watermark has reached it. Both need watermarks,
                and end the wait also if all inputs are idle, or have ended. None: left records never wait,
                and no watermarks are needed.
            ttl: How long after its arrival a right record is kept, in processing time. None until a newer one
                of its key arrives.

        Raises:
            PlanError: As for `join_interval`, or ``load`` is not a moment.
        """
        name = name or self.graph.free_name("join_latest")
        fields = self._join_fields(
            other, name, on, how, ("inner", "left"), attributes,
            needs="timestamps" if load is None else "watermarks", replaced="newest",
        )  # fmt: skip
        if other.operator.updating:
            fields |= _replaced_rows(name, fields, other.operator)
        load_ms, ttl_ms = join_checks.parse_load(name, load), checks.ttl_ms(name, ttl)
        return self.append(JoinLatest(**fields, load=load_ms, ttl_ms=ttl_ms))

    @property
    def late_left(self) -> Self:
        """The late records of the left side of a join with ``late="side-output"``, with its columns.

        Raises:
            PlanError: The stream is not the result of such a join.
        """
        return self.side_output(LATE_LEFT_OUTPUT)

    @property
    def late_right(self) -> Self:
        """The late records of the right side of a join with ``late="side-output"``, with its columns.

        Raises:
            PlanError: The stream is not the result of such a join.
        """
        return self.side_output(LATE_RIGHT_OUTPUT)

    def _join_fields(  # noqa: PLR0917 - what was declared, then the kinds that may be
        self,
        other: Self,
        name: str,
        on: str | Sequence[str] | Mapping[str, str],
        how: str,
        allowed: Sequence[str],
        attributes: Attributes | None,
        *,
        needs: Literal["watermarks", "timestamps"] | None = "watermarks",
        replaced: join_checks.ReplacedRows = "refused",
        by_time: bool = False,
        timestamps: tuple[str, str] | None = None,
    ) -> dict[str, Any]:
        """The fields of a join of streams, or of tables by time; ``allowed`` are the kinds it supports."""
        self._require_same_flow(other, name)
        join_checks.require_stream_join(
            self.operator, other.operator, name, how, allowed, needs=needs, replaced=replaced, by_time=by_time
        )
        pairs = resolve_join(self.operator, other.operator, name, on)
        type_checks.require_same_types(self.operator, other.operator, name, pairs)
        hidden: _Hidden = ((), ())
        if replaced == "retracted":
            joined = zip(*pairs, strict=True)
            left, right = (
                find_own_columns(side).difference(map(str.lower, used))
                for side, used in zip((self.operator, other.operator), joined, strict=True)
            )
            hidden = left, right
        fields = self._pair_fields(other, name, on, how, attributes, hidden=hidden)
        by = tuple(column for column, _ in fields["on"])
        checks.require_distinct(name, by)
        times = join_checks.parse_timestamps(self.operator, other.operator, name, timestamps)
        return {**fields, "by": by, "timestamps": times}

    def _pair_fields(
        self,
        other: Self,
        name: str,
        on: str | Sequence[str] | Mapping[str, str],
        how: str,
        attributes: Attributes | None,
        *,
        hidden: _Hidden = ((), ()),
    ) -> dict[str, Any]:
        """The fields of any join with another stream, without the columns that are hidden of each side."""
        left, right = self.operator, other.operator
        self._require_same_flow(other, name)
        pairs = resolve_join(left, right, name, on)
        type_checks.require_comparable(left, right, name, pairs)
        columns = tuple(each for each in left.columns if each.lower() not in hidden[0])
        if how not in ("semi", "anti"):
            # A column that is hidden of one side only would be taken for that of the other side.
            checks.require_unambiguous(left, right, name, pairs, {*hidden[0]}.intersection(hidden[1]))
            used = {column.lower() for _, column in pairs}.union(hidden[1])
            columns += tuple(each for each in right.columns if each.lower() not in used)
        fields = self._fields(name, attributes, inputs=(left, right), columns=columns)
        return {**fields, "on": pairs, "how": how}


def _replaced_rows(name: str, fields: Mapping[str, Any], right: Operator) -> dict[str, Any]:
    """The fields of a join with the newest right row, if right rows replace and delete each other."""
    replaced = require_replaced(right, name, "put the condition after the join")
    joined, key = [column for _, column in fields["on"]], ", ".join(replaced.key)
    if {*joined} != {*replaced.key}:
        checks.refuse(
            f"operator {name!r}: rows of {right.name!r} replace each other by {key}, and it joins on their "
            f"{', '.join(joined)}: rows that are replaced or deleted would still be partners; join on {key}"
        )
    columns = tuple(column for column in fields["columns"] if column != replaced.deleted)
    return {"columns": columns, "deleted": replaced.deleted}
