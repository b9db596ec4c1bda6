"""Streams and Python: the operators that call a user's function without keyed state, and co-groups."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Self

from flowcore.api import checks, type_checks
from flowcore.api.attributes import Attributes
from flowcore.api.co_groups import (
    GROUPED,
    BatchGroupFunction,
    RecordGroupFunction,
    parse_side_aggregates,
    require_ends,
)
from flowcore.api.expressions import resolve
from flowcore.api.functions import require_function
from flowcore.api.graph import StreamCore
from flowcore.api.operators import Apply, CoGroup, Filter, FlatMap, Map, MapBatches
from flowcore.api.resolution import resolve_join, resolve_passes, resolve_uses
from flowcore.api.schema import Schema

__all__ = ["PythonStream"]


class PythonStream(StreamCore):
    """The methods of `Stream` that call a Python function, and those that group two streams."""

    def map(
        self,
        function: Callable[[dict[str, Any]], Mapping[str, Any]],
        *,
        schema: Schema | str,
        uses: Sequence[str] | None = None,
        passes: Sequence[str] = (),
        key: str | Sequence[str] | None = None,
        flush: timedelta | None = None,
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Self:
        """Make one record of each with a Python function: ``record -> record``.

        A record is a ``dict`` from column to value. Prefer `select` and `with_columns` where Spark SQL
        can express it: a live query with a Python function cannot run in real-time mode.

        Args:
            function: A plain function, or an object with state (see `RichFunction`).
            schema: The columns of what it returns, as Spark DDL; checked when it runs.
            uses: The columns that it reads; no other column needs to reach the Python worker. Default:
                all.
            passes: The input columns that each output record has unchanged. A downstream `where` that reads
                only these runs first, so that fewer records reach the Python worker.
            key: Output columns under which a later record replaces the earlier ones, if the function
                declares ``is_output_idempotent``. Default: the key of its input, if it is in ``passes``.
            flush: How long output may be buffered, so that only the latest record of each key is emitted;
                as for `aggregate`.

        Raises:
            PlanError: ``function`` is not callable, or a column of ``uses``, ``passes`` or ``key`` is
                unknown.
        """
        fields = self._converted(
            "map", name, attributes, function, schema=schema, uses=uses, passes=passes, flush=flush
        )
        passed = self.operator.key_passed_by(fields["passes"])
        node = Map(**fields, key=passed)
        return self.append(_declare_key(node, key))

    def filter(
        self,
        function: Callable[[dict[str, Any]], bool],
        *,
        uses: Sequence[str] | None = None,
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Self:
        """Keep the records for which a Python function returns true: ``record -> bool``; see `map`.

        Raises:
            PlanError: ``function`` is not callable, or a column of ``uses`` is unknown.
        """
        name = self._function_name("filter", name, function)
        used = resolve_uses(self.operator, name, uses)
        fields = self._fields(name, attributes, key=self.operator.key)
        return self.append(Filter(**fields, function=function, uses=used))

    def flat_map(
        self,
        function: Callable[[dict[str, Any]], Iterable[Mapping[str, Any]]],
        *,
        schema: Schema | str,
        uses: Sequence[str] | None = None,
        passes: Sequence[str] = (),
        key: str | Sequence[str] | None = None,
        flush: timedelta | None = None,
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Self:
        """Make any number of records of each with a Python function: ``record -> records``.

        The function returns or yields records. All arguments are those of `map`; ``key`` has no default.

        Raises:
            PlanError: ``function`` is not callable, or a column of ``uses``, ``passes`` or ``key`` is
                unknown.
        """
        fields = self._converted(
            "flat_map", name, attributes, function, schema=schema, uses=uses, passes=passes, flush=flush
        )
        return self.append(_declare_key(FlatMap(**fields), key))

    def map_batches(
        self,
        function: Callable[[Any], Any],
        *,
        schema: Schema | str,
        uses: Sequence[str] | None = None,
        passes: Sequence[str] = (),
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Self:
        """Pass Arrow record batches to a Python function: ``RecordBatch -> RecordBatch``.

        Both are a ``pyarrow.RecordBatch`` of any length. The other arguments are those of `map`.

        Raises:
            PlanError: ``function`` is not callable, or a column of ``uses`` or ``passes`` is unknown.
        """
        fields = self._converted(
            "map_batches", name, attributes, function, schema=schema, uses=uses, passes=passes
        )
        return self.append(MapBatches(**fields))

    def apply(
        self,
        function: Callable[[Any], Any],
        *,
        schema: Schema | str | None = None,
        realtime: bool = False,
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Self:
        """Apply any DataFrame function: ``frame -> frame``.

        Args:
            function: Called with the input's DataFrame when the stage runs.
            schema: The columns of what it returns, as Spark DDL; default: those of its input. The columns
                that it returns are checked against this when the stage runs.
            realtime: It uses only what Spark's real-time mode allows, so the query may run in it.
            attributes: Its attributes; by default none is assumed.

        Raises:
            PlanError: ``function`` is not a function of one argument.
        """
        name = name or self.graph.free_name("apply")
        require_function(function, name, ("frame",))
        columns = self.columns if schema is None else Schema.parse(schema).names
        fields = self._fields(name, attributes, columns=columns)
        return self.append(Apply(**fields, function=function, realtime=realtime))

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
        checks.require_aggregate_name(name)
        name = name or self.graph.free_name("co_group")
        self._require_same_flow(right, name)
        require_ends({each.operator.name: each.bounded for each in (self, right)}, name)
        pairs = resolve_join(self.operator, right.operator, name, on)
        type_checks.require_comparable(self.operator, right.operator, name, pairs)
        if (function is None) == (not aggregates) or (function is None) != (schema is None):
            checks.refuse(
                f"operator {name!r} needs either aggregates or a function with its schema: otherwise its "
                "output is unknown; pass for instance total='sum(left.price)', or a function and "
                "schema='id BIGINT'"
            )
        if function is None or schema is None:
            return self._grouped(right, name, pairs, aggregates, attributes)
        require_function(function, name, ("key", "left", "right"))
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

    def _converted(
        self,
        kind: str,
        name: str | None,
        attributes: Attributes | None,
        function: object,
        *,
        schema: Schema | str,
        uses: Sequence[str] | None,
        passes: Sequence[str],
        flush: timedelta | None = None,
    ) -> dict[str, Any]:
        """The fields of an operator whose function makes records of another schema."""
        name = self._function_name(kind, name, function)
        schema = Schema.parse(schema)
        used = resolve_uses(self.operator, name, uses)
        passed = resolve_passes(self.operator, name, passes, schema, used)
        return self._fields(
            name, attributes, flush=flush,
            columns=schema.names, function=function, schema=schema, uses=used, passes=passed,
        )  # fmt: skip

    def _function_name(self, kind: str, name: str | None, function: object) -> str:
        name = name or self.graph.free_name(kind)
        require_function(function, name, ("batch",) if kind == "map_batches" else ("record",))
        return name


def _declare_key(node: Map | FlatMap, key: str | Sequence[str] | None) -> Map | FlatMap:
    """Give a Python function the key under which its later output replaces earlier output.

    Raises:
        PlanError: A column is unknown, or the function does not declare that its output replaces.
    """
    if key is None:
        return node
    columns = (key,) if isinstance(key, str) else tuple(key)
    names = resolve(columns, node.columns, node.name, f"key={key!r} (of its schema)")
    if not node.attributes().output_idempotent:
        checks.refuse(
            f"operator {node.name!r}: key={key!r}, and its function does not declare that a later record of "
            "a key replaces the earlier ones: readers would drop records that count; set "
            "is_output_idempotent = True on the function if it is so, or leave key out"
        )
    return replace(node, key=names, updating=not node.bounded)
