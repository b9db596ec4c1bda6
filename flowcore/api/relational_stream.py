"""Streams and Spark SQL: selections, filters, aggregates, joins and unions."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Self

from flowcore.api import checks
from flowcore.api.attributes import Attributes
from flowcore.api.expressions import resolve
from flowcore.api.graph import StreamCore
from flowcore.api.operators import Aggregate, Drop, Join, JoinType, Select, Union, Where, WithColumns
from flowcore.api.resolution import parse_aggregates, parse_row, parse_selection, resolve_join, select_key

__all__ = ["RelationalStream"]


class RelationalStream(StreamCore):
    """The methods of `Stream` that Spark executes natively."""

    def select(
        self, *expressions: str, name: str | None = None, attributes: Attributes | None = None
    ) -> Self:
        """Keep or compute exactly these columns: ``"id"``, ``"price * 2 as twice"``, ``"*"``.

        Raises:
            PlanError: A column is unknown or named twice, an expression has no name or aggregates.
        """
        name = name or self.graph.free_name("select")
        parsed = parse_selection(self.operator, name, expressions)
        columns = tuple(column for column, _ in parsed)
        checks.require_distinct(name, columns)
        key = select_key(self.operator, parsed)
        return self.append(
            Select(**self._fields(name, attributes, columns=columns, key=key), expressions=parsed)
        )

    def with_columns(
        self, *, name: str | None = None, attributes: Attributes | None = None, **expressions: str
    ) -> Self:
        """Add columns, or replace those of the same name: ``with_columns(ratio="price / median")``.

        Raises:
            PlanError: A column is unknown, or an expression aggregates.
        """
        node = self.operator
        name = name or self.graph.free_name("with_columns")
        parsed = tuple((column, parse_row(node, name, text)) for column, text in expressions.items())
        new = {column.lower() for column in expressions}
        kept = tuple(column for column in node.columns if column.lower() not in new)
        key = None if node.key is None or not new.isdisjoint(c.lower() for c in node.key) else node.key
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
            PlanError: A column is unknown, or the condition aggregates.
        """
        name = name or self.graph.free_name("where")
        parsed = parse_row(self.operator, name, condition)
        return self.append(Where(**self._fields(name, attributes, key=self.operator.key), condition=parsed))

    def aggregate(
        self,
        *,
        by: str | Sequence[str] = (),
        flush: timedelta | None = None,
        name: str | None = None,
        attributes: Attributes | None = None,
        **aggregates: str,
    ) -> Self:
        """Compute one row per distinct ``by``, with ``column="max(price)"`` for each aggregate.

        Over bounded input the rows are emitted once, at its end. Over unbounded input the row of a key is
        emitted again whenever it has changed; ``by`` is then the key under which it replaces the earlier
        one.

        Args:
            by: Column or columns to group by; none for one row over everything.
            flush: Unbounded input only: how long changes may be buffered, so that only the latest of each key
                is emitted; zero for not at all. Default: the setting ``execution.flush.max-interval``.

        Raises:
            PlanError: A column is unknown or named twice, the aggregate needs all distinct values of an
                unbounded input, or ``flush`` is given and later results may not replace earlier ones.
        """
        node = self.operator
        name = name or self.graph.free_name("aggregate")
        keys = (by,) if isinstance(by, str) else tuple(by)
        resolve(keys, node.columns, name, f"by={by!r}")
        if not keys and not aggregates:
            checks.refuse(
                f"operator {name!r} groups and computes nothing; pass for instance total='sum(price)'"
            )
        parsed = parse_aggregates(node, name, keys, aggregates)
        columns = (*keys, *aggregates)
        checks.require_distinct(name, columns)
        fields = self._fields(
            name, attributes, flush=flush, columns=columns, key=keys, updating=not node.bounded
        )
        return self.append(Aggregate(**fields, by=keys, aggregates=parsed))

    def join(
        self,
        other: Self,
        *,
        on: str | Sequence[str] | Mapping[str, str],
        how: JoinType = "inner",
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Self:
        """Join with a bounded stream on equal columns.

        The output has the columns of the left, then those of the right without the ones joined on.
        A bounded stream that is joined to an unbounded one is read to its end first, before any record of
        the unbounded stream.

        Args:
            on: Column, columns, or ``{left column: right column}`` that must be equal.
            how: ``inner``, ``left``, ``semi`` or ``anti``; with a bounded left also ``right``, ``full``.

        Raises:
            PlanError: A column is unknown or on both sides, the right side is unbounded, or ``how``
                needs the end of an unbounded left side.
        """
        left, right = self.operator, other.operator
        name = name or self.graph.free_name("join")
        self._require_same_flow(other, name)
        pairs = resolve_join(left, right, name, on)
        checks.require_join(left, right, name, how)
        columns = left.columns
        if how not in ("semi", "anti"):
            checks.require_unambiguous(left, right, name, pairs)
            used = {column.lower() for _, column in pairs}
            columns = (*columns, *(c for c in right.columns if c.lower() not in used))
        key = left.key if left.updating else None
        fields = self._fields(name, attributes, inputs=(left, right), columns=columns, key=key)
        return self.append(Join(**fields, on=pairs, how=how))

    def union(self, *others: Self, name: str | None = None, attributes: Attributes | None = None) -> Self:
        """Unite all records of this and other streams with the same columns, which are matched by name.

        Raises:
            PlanError: Columns differ, or bounded and unbounded streams are mixed.
        """
        name = name or self.graph.free_name("union")
        inputs = (self.operator, *(other.operator for other in others))
        for other in others:
            self._require_same_flow(other, name)
        checks.require_alike(inputs, name)
        return self.append(Union(**self._fields(name, attributes, inputs=inputs, updating=False)))
