"""The stream: the output of an operator, and what can be put behind it.

Every mistake that can be seen from names alone is an error here, with the name of the operator and the
column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from flowcore.api import checks
from flowcore.api.attributes import Attributes, OperatorAttributes, collect_declared
from flowcore.api.co_grouping import co_group
from flowcore.api.connectors import KafkaTopic, Sink
from flowcore.api.expressions import resolve
from flowcore.api.flushing import flush_ms
from flowcore.api.keyed_stream import KeyedStream
from flowcore.api.operators import (
    Aggregate,
    Join,
    JoinType,
    Operator,
    Select,
    Union,
    Where,
    WithColumns,
    Write,
)
from flowcore.api.python_stream import PythonStream
from flowcore.api.schema import Schema
from flowcore.api.value_formats import check_written
from flowcore.errors import PlanError

if TYPE_CHECKING:
    from flowcore.api.flow import Flow

__all__ = ["Stream"]


class Stream(PythonStream, KeyedStream):
    """The output of one operator; its methods add operators behind it.

    Expressions are Spark SQL text over this stream's columns. Every method takes a ``name``, which
    errors, plans, results and checkpoints use; without one it gets a name such as ``select_1``. And it
    takes ``attributes``, which win over what the operator says of itself; see `OperatorAttributes`.
    """

    def __init__(self, flow: Flow, operator: Operator) -> None:
        self._flow = flow
        self.operator = operator

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of its columns, in order."""
        return self.operator.columns

    @property
    def bounded(self) -> bool:
        """True if it ends."""
        return self.operator.bounded

    def attributes(self) -> OperatorAttributes:
        """What its operator promises."""
        return self.operator.attributes()

    def select(
        self, *expressions: str, name: str | None = None, attributes: Attributes | None = None
    ) -> Stream:
        """Keep or compute exactly these columns: ``"id"``, ``"price * 2 as twice"``, ``"*"``.

        Raises:
            PlanError: A column is unknown or named twice, an expression has no name or aggregates.
        """
        node = self.operator
        name = name or self._flow.free_name("select")
        parsed = checks.row_expressions(node, name, expressions)
        columns = tuple(column for column, _ in parsed)
        checks.require_distinct(name, columns)
        key = checks.key_after(node, parsed)
        return self._flow.add(
            Select(
                name=name, inputs=(node,), columns=columns, bounded=node.bounded,
                key=key, updating=node.updating, expressions=parsed,
                declared_attributes=collect_declared(attributes),
            )
        )  # fmt: skip

    def with_columns(
        self, *, name: str | None = None, attributes: Attributes | None = None, **expressions: str
    ) -> Stream:
        """Add columns, or replace those of the same name: ``with_columns(ratio="price / median")``.

        Raises:
            PlanError: A column is unknown, or an expression aggregates.
        """
        node = self.operator
        name = name or self._flow.free_name("with_columns")
        parsed = tuple(
            (column, checks.row_expression(node, name, text)) for column, text in expressions.items()
        )
        new = {column.lower() for column in expressions}
        kept = tuple(column for column in node.columns if column.lower() not in new)
        key = None if node.key is None or not new.isdisjoint(c.lower() for c in node.key) else node.key
        return self._flow.add(
            WithColumns(
                name=name, inputs=(node,), columns=(*kept, *expressions), bounded=node.bounded,
                key=key, updating=node.updating, expressions=parsed,
                declared_attributes=collect_declared(attributes),
            )
        )  # fmt: skip

    def where(
        self, condition: str, *, name: str | None = None, attributes: Attributes | None = None
    ) -> Stream:
        """Keep the records for which the condition is true (not false, not null).

        Raises:
            PlanError: A column is unknown, or the condition aggregates.
        """
        node = self.operator
        name = name or self._flow.free_name("where")
        parsed = checks.row_expression(node, name, condition)
        return self._flow.add(
            Where(
                name=name, inputs=(node,), columns=node.columns, bounded=node.bounded,
                key=node.key, updating=node.updating, condition=parsed,
                declared_attributes=collect_declared(attributes),
            )
        )  # fmt: skip

    def aggregate(
        self,
        *,
        by: str | Sequence[str] = (),
        flush: timedelta | None = None,
        name: str | None = None,
        attributes: Attributes | None = None,
        **aggregates: str,
    ) -> Stream:
        """One row per distinct ``by``, with ``column="max(price)"`` for each aggregate.

        Over bounded input the rows come out once, at its end. Over unbounded input the row of a key
        comes out again whenever it has changed; ``by`` is then the key under which it replaces
        the earlier one.

        Args:
            by: Column or columns to group by; none for one row over everything.
            flush: Of an unbounded input, how long changes may be held back, so that only the latest of each
                key leaves; zero for not at all. Default: the setting ``execution.flush.max-interval``.
            name: Name of the operator.
            attributes: What it promises beside what it says of itself.
            aggregates: Output column to Spark SQL aggregate.

        Raises:
            PlanError: A column is unknown or named twice, the aggregate needs all distinct values of an
                unbounded input, or it is not known that its results replace earlier ones and ``flush`` is
                given.
        """
        node = self.operator
        name = name or self._flow.free_name("aggregate")
        keys = (by,) if isinstance(by, str) else tuple(by)
        resolve(keys, node.columns, name, f"by={by!r}")
        if not keys and not aggregates:
            msg = f"operator {name!r} groups and computes nothing; pass for instance total='sum(price)'"
            raise PlanError(msg)
        parsed = checks.aggregate_expressions(node, name, keys, aggregates)
        columns = (*keys, *aggregates)
        checks.require_distinct(name, columns)
        return self._flow.add(
            Aggregate(
                name=name, inputs=(node,), columns=columns, bounded=node.bounded, key=keys,
                updating=not node.bounded, by=keys, aggregates=parsed,
                declared_attributes=collect_declared(attributes), flush_ms=flush_ms(name, flush),
            )
        )  # fmt: skip

    def join(
        self,
        other: Stream,
        *,
        on: str | Sequence[str] | Mapping[str, str],
        how: JoinType = "inner",
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Stream:
        """Join with a bounded stream on equal columns.

        The output has the columns of the left, then those of the right without the ones joined on.
        A bounded stream joined to an unbounded one is digested first: not a record of the stream
        meets it before it is complete.

        Args:
            other: The right side; bounded.
            on: Column, columns, or ``{left column: right column}`` that must be equal.
            how: ``inner``, ``left``, ``semi`` or ``anti``; with a bounded left also ``right``, ``full``.
            name: Name of the operator.
            attributes: What it promises beside what it says of itself.

        Raises:
            PlanError: A column is unknown or on both sides, the right side is unbounded, or ``how``
                needs the end of an unbounded left side.
        """
        left, right = self.operator, other.operator
        name = name or self._flow.free_name("join")
        self._require_same_flow(other, name)
        pairs = checks.join_columns(left, right, name, on)
        checks.require_bounded(
            right, name,
            f"put the unbounded side left ({right.name}.join({left.name}, ...)), or give its topic until=",
        )  # fmt: skip
        checks.require_join_type(left, name, how)
        columns = left.columns
        if how not in ("semi", "anti"):
            checks.require_unambiguous(left, right, name, pairs)
            used = {column.lower() for _, column in pairs}
            columns = (*columns, *(c for c in right.columns if c.lower() not in used))
        return self._flow.add(
            Join(
                name=name, inputs=(left, right), columns=columns, bounded=left.bounded,
                key=left.key if left.updating else None, updating=left.updating, on=pairs, how=how,
                declared_attributes=collect_declared(attributes),
            )
        )  # fmt: skip

    def union(self, *others: Stream, name: str | None = None, attributes: Attributes | None = None) -> Stream:
        """All records of this and other streams with the same columns, which are matched by name.

        Raises:
            PlanError: Columns differ, or bounded and unbounded streams are mixed.
        """
        name = name or self._flow.free_name("union")
        inputs = (self.operator, *(other.operator for other in others))
        for other in others:
            self._require_same_flow(other, name)
        checks.require_alike(inputs, name)
        return self._flow.add(
            Union(
                name=name, inputs=inputs, columns=self.columns, bounded=self.bounded,
                declared_attributes=collect_declared(attributes),
            )
        )  # fmt: skip

    def write(
        self,
        name: str,
        sink: Sink,
        *,
        key: str | Sequence[str] | None = None,
        attributes: Attributes | None = None,
    ) -> None:
        """Send this stream to a sink.

        Args:
            name: Name of the sink in plans and errors.
            sink: A `KafkaTopic`, or `Parquet`, `Csv`, `Json` files.
            key: Columns of the Kafka key; default: the sink's, else the stream's own key.
            attributes: What it promises beside what it says of itself.

        Raises:
            PlanError: Later records replace earlier ones, and the sink has no key to say which.
        """
        node = self.operator
        given = key if key is not None else sink.key if isinstance(sink, KafkaTopic) else None
        keys = (given,) if isinstance(given, str) else tuple(given) if given is not None else node.key
        resolve(keys or (), node.columns, name, f"key={given!r}")
        known = {column.lower(): column for column in node.columns}
        keys = None if keys is None else tuple(known[column.lower()] for column in keys)
        checks.require_writable(node, name, sink, keys)
        if isinstance(sink, KafkaTopic):
            check_written(sink, node.columns, name, keys)
        self._flow.add(
            Write(
                name=name, inputs=(node,), columns=node.columns, bounded=node.bounded,
                key=keys, updating=node.updating, sink=sink, declared_attributes=collect_declared(attributes),
            )
        )  # fmt: skip

    def co_group(
        self,
        right: Stream,
        function: Callable[[Any, Any, Any], Any] | None = None,
        *,
        on: str | Sequence[str] | Mapping[str, str],
        schema: Schema | str | None = None,
        batches: bool = False,
        name: str | None = None,
        attributes: Attributes | None = None,
        **aggregates: str,
    ) -> Stream:
        """Group this bounded stream and another by a key; what follows from each group is put out at the end.

        Either aggregates, ``total="sum(left.price)", bids="count(right)"``, which Spark computes: a row for
        each key, also where one side has no record for it. An aggregate is over the records of one side.
        Or a Python function, called once for each key: ``function(key, left, right)`` with a list of records
        for each side, which returns or yields records. Null is a key like others.

        Args:
            right: The other side.
            function: As for `flat_map`; the key is a value, or a tuple where ``on`` names several columns.
            on: Column, columns, or ``{left column: right column}`` that make the key.
            schema: The columns of what the function returns, as Spark DDL.
            batches: The function gets a ``pyarrow.RecordBatch`` for each side and returns one: for large
                groups. All records of a key must fit in memory either way.
            name: Name of the operator.
            attributes: What it promises beside what it says of itself.
            aggregates: Output column to Spark SQL aggregate, columns called ``left.price``, ``right.price``.

        Raises:
            PlanError: A side is unbounded, a column is unknown, or it is neither aggregates nor a function
                with its schema.
        """
        name = name or self._flow.free_name("co_group")
        self._require_same_flow(right, name)
        return co_group(
            self._flow, self.operator, right.operator, name,
            on=on, function=function, schema=schema, batches=batches, aggregates=aggregates,
            attributes=attributes,
        )  # fmt: skip

    def _require_same_flow(self, other: Stream, name: str) -> None:
        if other._flow is not self._flow:
            msg = (
                f"operator {name!r} takes {other.operator.name!r} of the flow {other._flow.name!r} into "
                f"{self._flow.name!r}: they are planned and run apart; read the source in this flow too"
            )
            raise PlanError(msg)
