"""Streams and co-groups: two bounded streams grouped by a common key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from flowcore.api import checks
from flowcore.api.attributes import Attributes
from flowcore.api.co_groups import (
    GROUPED,
    BatchGroupFunction,
    RecordGroupFunction,
    parse_side_aggregates,
    require_ends,
)
from flowcore.api.functions import require_function
from flowcore.api.operators import CoGroup
from flowcore.api.python_stream import PythonStream
from flowcore.api.resolution import resolve_join
from flowcore.api.schema import Schema


class CoGroupStream(PythonStream):
    """The methods of `Stream` that group two streams."""

    def co_group(
        self,
        right: Self,
        function: Callable[[Any, Any, Any], Any] | None = None,
        *,
        on: str | Sequence[str] | Mapping[str, str],
        schema: Schema | str | None = None,
        batches: bool = False,
        name: str | None = None,
        attributes: Attributes | None = None,
        **aggregates: str,
    ) -> Self:
        """Group this bounded stream and another by a key; the results are emitted at the end of both.

        Either with aggregates that Spark computes, ``total="sum(left.price)", bids="count(right)"``: one row
        per key, also where one side has no record for it. An aggregate is over the records of one side.
        Or with a Python function, called once per key: ``function(key, left, right)`` with a list of records
        for each side, which returns or yields records. Null is a key like others.

        Args:
            function: As for `flat_map`; the key is a value, or a tuple where ``on`` names several columns.
            on: Column, columns, or ``{left column: right column}`` that make the key.
            schema: The columns of what the function returns, as Spark DDL.
            batches: The function gets a ``pyarrow.RecordBatch`` for each side and returns one: for large
                groups. All records of a key must fit in memory either way.
            aggregates: Output column to Spark SQL aggregate, columns called ``left.price``, ``right.price``.

        Raises:
            PlanError: A side is unbounded, a column is unknown, or neither aggregates nor a function with its
                schema are given.
        """
        name = name or self.graph.free_name("co_group")
        self._require_same_flow(right, name)
        require_ends({each.operator.name: each.bounded for each in (self, right)}, name)
        pairs = resolve_join(self.operator, right.operator, name, on)
        if (function is None) == (not aggregates) or (function is None) != (schema is None):
            checks.refuse(
                f"operator {name!r} needs either aggregates or a function with its schema: otherwise its "
                "output is unknown; pass for instance total='sum(left.price)', or a function and "
                "schema='id BIGINT'"
            )
        if function is None or schema is None:
            return self._grouped(right, name, pairs, aggregates, attributes)
        require_function(function, name)
        lists = {column: f"collect_list({column[1:]})" for column in GROUPED}
        groups = self._grouped(right, f"{name}_groups", pairs, lists, None)
        keys = tuple(mine for mine, _ in pairs)
        if batches:
            by_batch = BatchGroupFunction(function, on=keys)
            return groups.map_batches(by_batch, schema=schema, name=name, attributes=attributes)
        by_record = RecordGroupFunction(function, on=keys)
        return groups.flat_map(by_record, schema=schema, name=name, attributes=attributes)

    def _grouped(
        self,
        right: Self,
        name: str,
        pairs: tuple[tuple[str, str], ...],
        aggregates: Mapping[str, str],
        attributes: Attributes | None,
    ) -> Self:
        parsed = parse_side_aggregates(aggregates, {"left": self.columns, "right": right.columns}, name)
        keys = tuple(mine for mine, _ in pairs)
        columns = (*keys, *(column for column, _ in parsed))
        checks.require_distinct(name, columns)
        fields = self._fields(
            name, attributes,
            inputs=(self.operator, right.operator), columns=columns, bounded=True, key=keys, updating=False,
        )  # fmt: skip
        return self.append(CoGroup(**fields, on=pairs, aggregates=parsed))
