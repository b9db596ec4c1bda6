"""Streams and Spark SQL: selections, filters, aggregates and unions."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Never, Self

from flowcore.api import checks, type_checks
from flowcore.api.attributes import Attributes
from flowcore.api.changelog import build_distinct_aggregate, build_retraction
from flowcore.api.event_time import build_event_time
from flowcore.api.expressions import Expression, name_columns, resolve
from flowcore.api.graph import StreamCore
from flowcore.api.history import build_history
from flowcore.api.keyed_aggregate import build_keyed_aggregate
from flowcore.api.operators import Aggregate, Drop, Select, Union, Where, WithColumns
from flowcore.api.resolution import (
    parse_aggregates,
    parse_columns,
    parse_condition,
    parse_selection,
    select_key,
)
from flowcore.api.updating_rows import find_replacing
from flowcore.watermarks.strategies import WatermarkStrategy

__all__ = ["RelationalStream"]


class RelationalStream(StreamCore):
    """The methods of `Stream` that Spark executes natively."""

    def select(
        self,
        *expressions: str,
        name: str | None = None,
        attributes: Attributes | None = None,
        **others: Never,
    ) -> Self:
        """Keep or compute exactly these columns: ``"id"``, ``"price * 2 as twice"``, ``"*"``.

        ``"*"`` stands for the columns that no other expression names. ``"explode(tags) as tag"`` makes a
        record for each element of an array.

        Raises:
            PlanError: A column is unknown or named twice, an expression has no name, aggregates, or makes
                several records of one in another way than ``explode``.
        """
        name = name or self.graph.free_name("select")
        if others:
            checks.refuse(
                f"operator {name!r}: select takes no {', '.join(others)}=: it emits what it reads, and its "
                "columns are texts; write a column as 'price * 2 as twice', and flush= or ttl= at an "
                "operator with state such as aggregate"
            )
        parsed = parse_selection(self.operator, name, expressions)
        columns = tuple(column for column, _ in parsed)
        checks.require_distinct(name, columns)
        key = None if _generates(parsed) else select_key(self.operator, parsed)
        return self.append(
            Select(**self._fields(name, attributes, columns=columns, key=key), expressions=parsed)
        )

    def with_columns(
        self, *, name: str | None = None, attributes: Attributes | None = None, **expressions: str
    ) -> Self:
        """Add columns, or replace those of the same name: ``with_columns(ratio="price / median")``.

        ``name=`` is the operator's name. For a column called name use ``select("*", "upper(id) as name")``.

        Raises:
            PlanError: A column is unknown, none is made, or an expression aggregates, or makes several
                records of one in another way than ``explode``.
        """
        node = self.operator
        checks.require_columns(name, node.columns, expressions)
        name = name or self.graph.free_name("with_columns")
        parsed = parse_columns(node, name, expressions)
        new = {column.lower() for column in expressions}
        kept = tuple(column for column in node.columns if column.lower() not in new)
        key = None if _generates(parsed) or not new.isdisjoint(map(str.lower, node.key or ())) else node.key
        fields = self._fields(name, attributes, columns=(*kept, *expressions), key=key)
        return self.append(WithColumns(**fields, expressions=parsed))

    def drop(self, *columns: str, name: str | None = None, attributes: Attributes | None = None) -> Self:
        """Keep all columns but these: ``drop("price", "note")``.

        Raises:
            PlanError: A column is unknown, none is named, or none would be left.
        """
        node = self.operator
        name = name or self.graph.free_name("drop")
        dropped = resolve(columns, node.columns, name, f"drop{columns!r}")
        kept = tuple(column for column in node.columns if column not in dropped)
        if not dropped or not kept:
            left = "leaves no column" if dropped else "drops nothing"
            checks.refuse(
                f"operator {name!r} {left}: it has no use; name some of {', '.join(node.columns)}, not all"
            )
        key = None if node.key is None or not set(dropped).isdisjoint(node.key) else node.key
        return self.append(Drop(**self._fields(name, attributes, columns=kept, key=key), dropped=dropped))

    def where(self, condition: str, *, name: str | None = None, attributes: Attributes | None = None) -> Self:
        """Keep the records for which the condition is true (not false, not null).

        Raises:
            PlanError: A column is unknown, or the condition aggregates, or is not BOOLEAN.
        """
        name = name or self.graph.free_name("where")
        parsed = parse_condition(self.operator, name, condition)
        return self.append(Where(**self._fields(name, attributes, key=self.operator.key), condition=parsed))

    def with_event_time(
        self,
        event_time: str,
        *,
        watermark: WatermarkStrategy,
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Self:
        """Assign event time anew: windows, timers and joins downstream use these timestamps and watermarks.

        For records whose time is known only after they were parsed. Each partition of the source has its own
        watermark, which the records make that arrive here. Timestamps and watermarks from upstream end here.
        A record whose time is null, or too far ahead of the clock, is a bad record of its source.

        Args:
            event_time: Column or Spark SQL expression of a record's timestamp, BIGINT milliseconds since 1970
                or TIMESTAMP.
            watermark: How watermarks follow from these timestamps, as for `KafkaTopic`.

        Raises:
            PlanError: A column is unknown, the type is not one of a time, or the stream is bounded, of
                several sources, or downstream of an operator that keeps state or gets batches.
        """
        node = self.operator
        name = name or self.graph.free_name("with_event_time")
        fields = self._fields(name, attributes, key=node.key)
        return self.append(build_event_time(node, name, fields, event_time, watermark))

    def aggregate(
        self,
        *,
        by: str | Sequence[str] = (),
        ttl: timedelta | None = None,
        flush: timedelta | None = None,
        name: str | None = None,
        attributes: Attributes | None = None,
        **aggregates: str,
    ) -> Self:
        """Compute one row per distinct ``by``, with ``column="max(price)"`` for each aggregate.

        Over bounded input the rows are emitted once, at its end. Over unbounded input the row of a key is
        emitted again whenever it has changed; ``by`` is then the key under which it replaces the earlier
        one.

        If rows of the input replace earlier ones, only the last row of each of its keys counts: a row takes
        back the one that it replaces. A group that loses all its rows is deleted: the last column
        ``is_deleted`` is true then, and `write` makes a tombstone of it.

        Args:
            by: Column or columns to group by; none for one row over everything.
            ttl: Unbounded input only: how long after its last record, in processing time, a group is kept.
                Its next record begins a new group. The aggregates are then those of windows, and state is by
                key group. Of rows that replace earlier ones: how long a row counts that is not replaced.
                Default: for ever.
            flush: Unbounded input only: how long changes may be buffered, so that only the latest of each key
                is emitted; zero for not at all. Default: the setting ``execution.flush.max-interval``.

        Raises:
            PlanError: A column is unknown or named twice, an aggregate cannot be computed beside one of
                distinct values of an unbounded input, or cannot take a row back, a row that replaces another
                one may be dropped, ``ttl`` or ``flush`` is given and the input is bounded, or ``flush`` is
                given and later results may not replace earlier ones.
        """
        node = self.operator
        checks.require_aggregate_name(name)
        name = name or self.graph.free_name("aggregate")
        keys = name_columns(by, name, "by")
        resolve(keys, node.columns, name, f"by={by!r}")
        if not keys and not aggregates:
            checks.refuse(
                f"operator {name!r} groups and computes nothing; pass for instance total='sum(price)'"
            )
        columns = (*keys, *aggregates)
        checks.require_distinct(name, columns, "give the aggregate another keyword")
        fields = self._fields(
            name, attributes, flush=flush, columns=columns, key=keys, updating=not node.bounded
        )
        ttl_ms = checks.ttl_ms(name, ttl)
        if find_replacing(node) is not None:
            changes, aggregate = build_retraction(fields, keys, aggregates, ttl_ms)
            return self.append(changes).append(aggregate)
        if ttl_ms is not None:
            return self.append(build_keyed_aggregate(fields, keys, aggregates, ttl_ms))
        parsed = parse_aggregates(node, name, keys, aggregates)
        if not node.bounded and any(expression.distinct for _, expression in parsed):
            return self.append(build_distinct_aggregate(fields, keys, aggregates))
        return self.append(Aggregate(**fields, by=keys, aggregates=parsed))

    def union(self, *others: Self, name: str | None = None, attributes: Attributes | None = None) -> Self:
        """Unite all records of this and other streams with the same columns, which are matched by name.

        Raises:
            PlanError: Columns differ, or bounded and unbounded streams are mixed.
        """
        name = name or self.graph.free_name("union")
        for other in others:
            self._require_same_flow(other, name)
        inputs = (self.operator, *(other.operator for other in others))
        checks.require_alike(inputs, name)
        type_checks.require_united(inputs, name)
        return self.append(Union(**self._fields(name, attributes, inputs=inputs, updating=False)))

    def then(
        self,
        live: Self,
        *,
        at: datetime | None = None,
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Self:
        """Let the unbounded ``live`` begin with this bounded stream as its history.

        State downstream begins with the history: its query reads all of it, in the order of event time,
        before the first record of ``live``. Event time advances with the history as with the topic's records.

        Args:
            live: The source of a topic, with the same columns. Nothing else in the flow may read it.
            at: The event time at which the history ends and ``live`` begins: later records of the history,
                and earlier ones of ``live``, are left out. Default: the start of the topic is the seam. A
                history that reads the same topic must have its end there.

        Raises:
            PlanError: This stream is unbounded, ``live`` is not the source of a topic with the same columns,
                or records would be counted twice or not at all at the seam.
        """
        name = name or self.graph.free_name("then")
        self._require_same_flow(live, name)
        node = live.operator
        fields = live._fields(name, attributes, inputs=(node, self.operator))
        return self.append(build_history(self.operator, node, name, fields, at))


def _generates(expressions: Iterable[tuple[str, Expression]]) -> bool:
    """Whether a record may become several, so that its key does not say which replaces which."""
    return any(expression.generates for _, expression in expressions)
