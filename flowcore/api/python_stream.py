"""Streams and Python: the operators of a stream that call a user's function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from flowcore.api import checks
from flowcore.api.attributes import Attributes, collect_declared
from flowcore.api.flushing import flush_ms, keyed
from flowcore.api.functions import require_function
from flowcore.api.operators import (
    Apply,
    Filter,
    FlatMap,
    Map,
    MapBatches,
    Operator,
)
from flowcore.api.schema import Schema

if TYPE_CHECKING:
    from flowcore.api.flow import Flow
    from flowcore.api.stream import Stream

__all__ = ["PythonStream"]


class PythonStream:
    """What can be put behind a stream in Python; see `Stream`."""

    _flow: Flow
    operator: Operator

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
    ) -> Stream:
        """Make one record of each with a Python function: ``record -> record``.

        A record is a ``dict`` from column to value. Prefer `select` and `with_columns` where Spark SQL
        can say it: a live query with a Python function cannot run in real-time mode.

        Args:
            function: A plain function, or an object with state (see `RichFunction`).
            schema: The columns of what it returns, as Spark DDL; checked when it runs.
            uses: The columns that it reads; no other column needs to reach the Python worker. Default:
                all.
            passes: The columns of its input that are, unchanged, in each record it puts out: a `where` that
                reads no others is done before it, so that fewer records reach the Python worker.
            key: Columns of its output of which a later record replaces the earlier ones, if the function
                declares ``is_output_idempotent``. Default: the key of its input, if it is in ``passes``.
            flush: How long what it puts out may be held back, so that only the latest of each key leaves;
                as for `aggregate`.
            name: Name of the operator.
            attributes: What it promises, beside what the function declares.

        Raises:
            PlanError: It is no function, or a column of ``uses``, ``passes`` or ``key`` is unknown.
        """
        fields = self._converted("map", function, schema, uses, passes, name=name)
        passed = checks.key_passed(self.operator, fields["passes"])
        length = flush_ms(fields["name"], flush)
        node = Map(**fields, key=passed, declared_attributes=collect_declared(attributes), flush_ms=length)
        return self._flow.add(keyed(node, key))

    def filter(
        self,
        function: Callable[[dict[str, Any]], bool],
        *,
        uses: Sequence[str] | None = None,
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Stream:
        """Keep the records for which a Python function returns true: ``record -> bool``.

        Args:
            function: As for `map`.
            uses: The columns that it reads, as for `map`.
            name: Name of the operator.
            attributes: What it promises, beside what the function declares.

        Raises:
            PlanError: It is no function, or a column of ``uses`` is unknown.
        """
        node, name = self.operator, self._python(function, "filter", name)
        return self._flow.add(
            Filter(
                name=name, inputs=(node,), columns=node.columns, bounded=node.bounded, key=node.key,
                updating=node.updating, function=function, uses=checks.columns_named(node, name, uses),
                declared_attributes=collect_declared(attributes),
            )
        )  # fmt: skip

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
    ) -> Stream:
        """Make any number of records of each with a Python function: ``record -> records``.

        Args:
            function: As for `map`; returns or yields records.
            schema: The columns of its records, as Spark DDL; checked when it runs.
            uses: The columns that it reads, as for `map`.
            passes: The columns that it hands on unchanged, as for `map`.
            key: As for `map`; without a default.
            flush: As for `map`.
            name: Name of the operator.
            attributes: What it promises, beside what the function declares.

        Raises:
            PlanError: It is no function, or a column of ``uses``, ``passes`` or ``key`` is unknown.
        """
        fields = self._converted("flat_map", function, schema, uses, passes, name=name)
        length = flush_ms(fields["name"], flush)
        return self._flow.add(
            keyed(FlatMap(**fields, declared_attributes=collect_declared(attributes), flush_ms=length), key)
        )

    def map_batches(
        self,
        function: Callable[[Any], Any],
        *,
        schema: Schema | str,
        uses: Sequence[str] | None = None,
        passes: Sequence[str] = (),
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Stream:
        """Hand Arrow record batches to a Python function: ``RecordBatch -> RecordBatch``.

        Args:
            function: Gets a ``pyarrow.RecordBatch`` of any length and returns one of any length.
            schema: The columns of what it returns, as Spark DDL; checked when it runs.
            uses: The columns that it reads, as for `map`.
            passes: The columns that it hands on unchanged, as for `map`.
            name: Name of the operator.
            attributes: What it promises, beside what the function declares.

        Raises:
            PlanError: It is no function, or a column of ``uses`` or ``passes`` is unknown.
        """
        fields = self._converted("map_batches", function, schema, uses, passes, name=name)
        return self._flow.add(MapBatches(**fields, declared_attributes=collect_declared(attributes)))

    def apply(
        self,
        function: Callable[[Any], Any],
        *,
        schema: Schema | str | None = None,
        realtime: bool = False,
        name: str | None = None,
        attributes: Attributes | None = None,
    ) -> Stream:
        """Put any DataFrame function in the flow: ``frame -> frame``.

        Args:
            function: Called with the input's DataFrame when the stage runs.
            schema: The columns of what it returns, as Spark DDL; default: those of its input. What
                it really returns is checked against this when the stage runs.
            realtime: It uses only what Spark's real-time mode allows, so the query may run in it.
            name: Name of the operator.
            attributes: What it promises; nothing is known of a function.
        """
        node = self.operator
        name = name or self._flow.free_name("apply")
        columns = node.columns if schema is None else Schema.parse(schema).names
        return self._flow.add(
            Apply(
                name=name, inputs=(node,), columns=columns, bounded=node.bounded,
                updating=node.updating, function=function, realtime=realtime,
                declared_attributes=collect_declared(attributes),
            )
        )  # fmt: skip

    def _converted(
        self,
        kind: str,
        function: object,
        schema: Schema | str,
        uses: Sequence[str] | None,
        passes: Sequence[str],
        *,
        name: str | None,
    ) -> dict[str, Any]:
        """What the operators have in common that make records of another schema."""
        node, name = self.operator, self._python(function, kind, name)
        schema = Schema.parse(schema)
        used = checks.columns_named(node, name, uses)
        return {
            "name": name,
            "inputs": (node,),
            "columns": schema.names,
            "bounded": node.bounded,
            "updating": node.updating,
            "function": function,
            "schema": schema,
            "uses": used,
            "passes": checks.columns_passed(node, name, passes, schema, used),
        }

    def _python(self, function: object, kind: str, name: str | None) -> str:
        name = name or self._flow.free_name(kind)
        require_function(function, name)
        return name
