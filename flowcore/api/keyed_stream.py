"""Streams and keyed state: windows, keyed process functions and their side outputs."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, Self

from flowcore.api import checks, window_checks
from flowcore.api.attributes import Attributes
from flowcore.api.changelog import build_retracting_top_n
from flowcore.api.event_time import parse_row_time
from flowcore.api.functions import require_function
from flowcore.api.graph import StreamCore
from flowcore.api.missing_watermarks import find_missing_watermarks
from flowcore.api.operators import Deduplicate, EventTimeSort, Ranked, SideOutput
from flowcore.api.resolution import parse_gap, resolve_key, resolve_uses
from flowcore.api.schema import Schema
from flowcore.api.stateful import LATE_OUTPUT, KeyedProcess, Reduce, find_side_columns
from flowcore.api.updating_rows import find_replacing, require_final
from flowcore.api.window_assigners import (
    GAP_COLUMN,
    Length,
    Session,
    WindowDeclaration,
    build_assigner,
    lateness_ms,
)
from flowcore.api.window_operator import Window
from flowcore.api.windowed_stream import WindowedStream
from flowcore.process import KeyedProcessFunction
from flowcore.process.reducing import ReduceFunction, ReducingProcess
from flowcore.windows import Evictor, WindowAggregate, WindowConfig
from flowcore.windows.built_in import BuiltIns
from flowcore.windows.config import LateRecords, WindowTime, require_late
from flowcore.windows.triggers import Trigger

__all__ = ["KeyedStream"]

_NO_FUNCTION = WindowAggregate(BuiltIns(()))


class KeyedStream(StreamCore):
    """The methods of `Stream` that keep state by key group."""

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
        ttl: timedelta | None = None,
        flush: timedelta | None = None,
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> WindowedStream[Self]:
        """Group records by time; a method of `WindowedStream` declares what each window emits.

        Args:
            windows: `Tumbling`, `Sliding`, `Session`, `Global`, `EndOfStream`, or an assigner of your own.
            by: Column or columns of the key; none for one key for all.
            trigger: When a window emits (see `flowcore.windows.triggers`); default: at its end.
            evictor: Which records are dropped when it emits (see `flowcore.windows`).
            allowed_lateness: How long after its end a window still accepts records, each emitting anew;
                seconds or `timedelta`. ``math.inf``: for ever, so windows are kept until the input ends.
            late: ``"drop"`` (and count) records that arrive later, or ``"side-output"``: see `late`.
            time: ``"event"``: the records' timestamps and watermarks. ``"processing"``: processing time.
            timestamp: Bounded input only: column or expression of a row's time, BIGINT milliseconds or
                TIMESTAMP.
            uses: The columns that its Python functions read, or that `top_n` ranks; default: all.
            ttl: `Global` only: how long after its last record, in processing time, a key is kept. Its next
                record begins a new window. Default: for ever.
            flush: As for `aggregate`, with the latest result of each key and window.

        Raises:
            PlanError: A column is unknown, records replace earlier ones, or the windows would never emit, for
                instance because the source sets no watermarks.
            InvalidWindowError: The parameters contradict each other.
        """
        given_name, name = name, name or self.graph.free_name("window")
        require_final(self.operator, name, "use aggregate(by=...), which takes it back")
        require_late(late, name)
        config = WindowConfig(
            assigner=build_assigner(windows, name), function=_NO_FUNCTION, time=time, trigger=trigger,
            evictor=evictor, allowed_lateness_ms=lateness_ms(allowed_lateness), late=late,
            ttl_ms=checks.ttl_ms(name, ttl),
        )  # fmt: skip
        row_time = None if timestamp is None else parse_row_time(self.operator, name, timestamp)
        window_checks.require_windows(self.operator, name, config, row_time)
        gap = windows.gap if isinstance(windows, Session) and isinstance(windows.gap, str) else None
        computed = () if gap is None else ((GAP_COLUMN, parse_gap(self.operator, name, gap)),)
        fields = self._keyed_fields(name, by, uses, flush, attributes)
        template = Window(**fields, config=config, computed=computed, timestamp=row_time)
        return WindowedStream(stream=self, given_name=given_name, template=template)

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
    ) -> Self:
        """Call a Python function with state and timers for each key.

        Args:
            function: Handles records and timers; see `KeyedProcessFunction`.
            schema: The columns of the records it emits, as Spark DDL.
            by: Column or columns of the key; none for one key for all.
            side_outputs: Name to schema of its side outputs; `side_output` reads them.
            timestamp: Bounded input only: as for `window`.
            uses: The columns that it reads; default: all.
            flush: As for `aggregate`, if the function declares ``is_output_idempotent``.

        Raises:
            PlanError: A column is unknown, or it is not a `KeyedProcessFunction`.
        """
        name = name or self.graph.free_name("process")
        window_checks.require_keyed_process(function, name)
        row_time = None if timestamp is None else parse_row_time(self.operator, name, timestamp)
        window_checks.require_timestamp(self.operator, name, row_time, needed=False)
        types = Schema.parse(schema)
        outputs = side_outputs or {}
        for output in outputs:
            checks.require_name("side output", output)
        return self.append(
            KeyedProcess(
                **self._keyed_fields(name, by, uses, flush, attributes, columns=types.names),
                function=function, schema=types, timestamp=row_time,
                side_outputs=tuple((output, Schema.parse(each)) for output, each in outputs.items()),
            )
        )  # fmt: skip

    def reduce(
        self,
        function: ReduceFunction,
        *,
        schema: Schema | str,
        by: str | Sequence[str] = (),
        ttl: timedelta | None = None,
        flush: timedelta | None = None,
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Self:
        """Fold the records of each key into one, which is emitted after each record.

        Args:
            function: ``(kept, new) -> kept``, of dicts with the columns of the schema. The columns of the key
                stay as they are.
            schema: The columns that it reads and emits, those of the key included, as Spark DDL.
            by: Column or columns of the key; none for one key for all.
            ttl: How long after its last record the folded record of a key is kept; default: for ever.
            flush: As for `aggregate`.

        Raises:
            PlanError: A column is unknown or the schema lacks the key, it is not a function, the input is
                bounded, or records replace earlier ones.
        """
        name = name or self.graph.free_name("reduce")
        ttl_ms = checks.ttl_ms(name, ttl)
        require_final(self.operator, name, "use aggregate(by=...), or process(by=...) for that")
        require_function(function, name, ("kept", "new"))
        types = Schema.parse(schema)
        fields = self._keyed_fields(name, by, types.names, flush, attributes, columns=types.names)
        keys = fields["by"]
        window_checks.require_reducible(self.operator, name, types.names, keys)
        process = ReducingProcess(function, row_type=types.row_type, columns=types.names, keys=keys, ttl=ttl)
        return self.append(
            Reduce(
                **{**fields, "key": keys, "updating": True}, function=process, schema=types, fold=function,
                ttl_ms=ttl_ms,
            )
        )  # fmt: skip

    def deduplicate(
        self,
        *,
        by: str | Sequence[str],
        within: timedelta | None,
        keep: Literal["first"] = "first",
        timestamp: str | None = None,
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Self:
        """Pass the first record of each key, and drop what repeats it within a time.

        A record repeats an earlier record that has passed, if both have the same key and timestamps less than
        ``within`` apart. A record that passes keeps its columns, its timestamp and its record id. The time is
        event time if all sources set watermarks, otherwise processing time; `within` of processing time must
        be longer than the time for which the flow is stopped between two runs.

        Args:
            by: Column or columns of the key. Null equals null, as in Spark.
            within: Keys are kept for one to two times as long. None: for ever, which fills the disk in the
                end.
            keep: ``"first"``, in order of arrival; of bounded input, in order of ``timestamp``.
            timestamp: Bounded input only: as for `window`.

        Raises:
            PlanError: A column is unknown, the length is not above 0, or records replace earlier ones.
        """
        node, name = self.operator, name or self.graph.free_name("deduplicate")
        window_checks.require_first(node, name, keep)
        limit_ms = window_checks.deduplication_ms(name, within)
        row_time = None if timestamp is None else parse_row_time(node, name, timestamp)
        window_checks.require_timestamp(node, name, row_time, needed=limit_ms is not None)
        fields = self._fields(name, attributes, key=node.key, by=resolve_key(node, name, by))
        time = window_checks.deduplication_time(node, name, limit_ms)
        return self.append(Deduplicate(**fields, within_ms=limit_ms, time=time, timestamp=row_time))

    def sort_by_event_time(
        self,
        *,
        by: str | Sequence[str] = (),
        late: LateRecords = "drop",
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Self:
        """Emit the records of each key in order of event time, when the watermark reaches them.

        Records with equal timestamps are in order of arrival. A record keeps its columns, its timestamp and
        its record id. It is late if the watermark has reached it before it arrives.

        Args:
            by: Column or columns of the key; none for the order in each partition of the sources. Null equals
                null, as in Spark.
            late: ``"drop"`` (and count) late records, or ``"side-output"``: see `late`.

        Raises:
            PlanError: A column is unknown, the stream is bounded or has no watermarks, or records replace
                earlier ones.
            InvalidWindowError: ``late`` is not one of the two.
        """
        node, name = self.operator, name or self.graph.free_name("sort_by_event_time")
        require_late(late, name)
        window_checks.require_sortable(node, name)
        fields = self._fields(name, attributes, key=node.key, by=resolve_key(node, name, by))
        return self.append(EventTimeSort(**fields, late=late))

    def latest(
        self,
        *,
        by: str | Sequence[str],
        timestamp: str | None = None,
        ttl: timedelta | None = None,
        flush: timedelta | None = None,
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Self:
        """Keep the newest row of each key, which replaces the earlier ones.

        Rows are in order of event time if all sources set watermarks, otherwise of arrival. Of rows with one
        timestamp the last to arrive is the newest. Over bounded input the rows are emitted once, at its end.
        Over unbounded input a row is emitted if it is the newest of its key after its batch.

        Args:
            by: Column or columns of the key. Null equals null, as in Spark.
            timestamp: Bounded input only, and needed there: as for `window`.
            ttl: Unbounded input only: how long after its last record, in processing time, a key is kept. Its
                next record is the newest, however old it is. Default: for ever.
            flush: As for `aggregate`.

        Raises:
            PlanError: A column is unknown, records replace earlier ones, ``ttl`` is given and the input is
                bounded, or ``timestamp`` is missing or given in vain.
        """
        node, name = self.operator, name or self.graph.free_name("latest")
        row_time = None if timestamp is None else parse_row_time(node, name, timestamp)
        window_checks.require_rankable(node, name)
        window_checks.require_order_in_time(node, name, row_time)
        fields = self._ranked_fields(name, by, ttl, flush, attributes)
        timed = node.bounded or find_missing_watermarks(node, name) is None
        time: Literal["event", "arrival"] = "event" if timed else "arrival"
        return self.append(
            Ranked(**fields, key=fields["by"], n=1, order=(), time=time, rank=None, timestamp=row_time)
        )

    def top_n(
        self,
        n: int,
        *,
        by: str | Sequence[str] = (),
        order: str | Sequence[str],
        rank: str = "rank",
        ttl: timedelta | None = None,
        flush: timedelta | None = None,
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Self:
        """Keep the first ``n`` rows of each key in an order, with their rank from 1.

        Over bounded input the rows are emitted once, at its end. Over unbounded input the row of each rank
        that has changed is emitted after each batch; ``by`` and the rank are the key under which it replaces
        the earlier one.

        If rows of the input replace earlier ones, only the last row of each of its keys has a rank: a row
        takes back the one that it replaces, and later rows move up. Where a rank vanishes, the last column
        ``is_deleted`` is true, and `write` makes a tombstone of it.

        Args:
            by: Column or columns of the key; none for one key for all. Null equals null, as in Spark.
            order: Columns such as ``"price desc"``; without ``desc`` small values come first. Nulls are the
                smallest values, as in Spark. Of equal rows the first to arrive comes first; of rows that
                replace earlier ones, that with the smallest key.
            rank: The name of the column of the rank, which is added after those of the input.
            ttl: Unbounded input only: how long after its last record, in processing time, the rows of a key
                are kept. Its next record has rank 1. Of rows that replace earlier ones: how long a row has a
                rank that is not replaced. Default: for ever.
            flush: As for `aggregate`.

        Raises:
            PlanError: A column is unknown or there is one named ``rank``, the order names none, ``n`` is not
                positive, a row that replaces another one may be dropped, or ``ttl`` is given and the input is
                bounded.
        """
        node, name = self.operator, name or self.graph.free_name("top_n")
        window_checks.require_rank_name(rank, node.columns, name)
        if find_replacing(node) is not None:
            changing = self._fields(name, attributes, flush=flush)
            keys, ttl_ms = resolve_key(node, name, by), checks.ttl_ms(name, ttl)
            changes, ranked = build_retracting_top_n(changing, keys, (n, rank), order, ttl_ms)
            return self.append(changes).append(ranked)
        window_checks.require_rankable(node, name)
        parsed = window_checks.rank_order(node, name, n, order)
        fields = self._ranked_fields(name, by, ttl, flush, attributes)
        columns = (*node.columns, rank)
        checks.require_distinct(name, columns)
        fields |= {"columns": columns, "key": (*fields["by"], rank)}
        return self.append(Ranked(**fields, n=n, order=parsed, time="arrival", rank=rank))

    def side_output(self, output: str) -> Self:
        """The records that an operator with state emits to a side output.

        Raises:
            PlanError: The operator has no side output of this name.
        """
        node = self.operator
        for each in self.graph.operators:
            if isinstance(each, SideOutput) and each.inputs == (node,) and each.output == output:
                return type(self)(self.graph, each)
        columns, schema = find_side_columns(node, output)
        fields = self._fields(f"{node.name}.{output}", None, columns=columns, updating=False)
        return self.append(SideOutput(**fields, output=output, schema=schema))

    @property
    def late(self) -> Self:
        """The late records of windows or of a sort, with the columns of its input.

        Raises:
            PlanError: This stream is not the result of windows or a sort with ``late="side-output"``.
        """
        return self.side_output(LATE_OUTPUT)

    def _ranked_fields(
        self,
        name: str,
        by: str | Sequence[str],
        ttl: timedelta | None,
        flush: timedelta | None,
        attributes: Attributes | None,
    ) -> dict[str, Any]:
        node = self.operator
        if ttl is not None:
            window_checks.require_unbounded_for_ttl(node, name)
        return self._fields(
            name, attributes, flush=flush, updating=not node.bounded,
            by=resolve_key(node, name, by), ttl_ms=checks.ttl_ms(name, ttl),
        )  # fmt: skip

    def _keyed_fields(
        self,
        name: str,
        by: str | Sequence[str],
        uses: Sequence[str] | None,
        flush: timedelta | None,
        attributes: Attributes | None,
        **changed: Any,
    ) -> dict[str, Any]:
        node = self.operator
        keys = resolve_key(node, name, by)
        used = resolve_uses(node, name, uses)
        return self._fields(
            name, attributes, flush=flush, updating=False,
            by=keys, uses=node.columns if used is None else used, **changed,
        )  # fmt: skip
