"""Windowed streams: windows, and the functions that say what each of them emits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from flowcore.api import checks, window_checks
from flowcore.api.expressions import Expression
from flowcore.api.functions import require_function
from flowcore.api.graph import StreamCore
from flowcore.api.schema import Schema
from flowcore.api.window_aggregates import parse_window_aggregates
from flowcore.api.window_operator import WINDOW_COLUMNS, Window
from flowcore.windows import AggregateFunction, ProcessFunction, WindowAggregate, WindowProcess, WindowReduce
from flowcore.windows.built_in import BuiltIns
from flowcore.windows.functions import WindowFunction
from flowcore.windows.top_rows import EachRow, TopRows

__all__ = ["Then", "WindowedStream"]

Then = ProcessFunction | Callable[[Any, Sequence[Any]], Any]
"""A process function: an object of that kind, or a plain function ``(context, values) -> outputs``."""

_StreamT = TypeVar("_StreamT", bound=StreamCore)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedStream(Generic[_StreamT]):
    """Windows whose function is not declared yet; `Stream.window` makes them.

    Each method gives the stream of results: the columns of ``by``, those that the function makes, then
    ``window_start`` and ``window_end`` (TIMESTAMP), ``firing`` (INT, from 1) and ``is_late`` (BOOLEAN).

    Attributes:
        template: The operator without its function and output columns.
    """

    stream: _StreamT
    given_name: str | None
    template: Window

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            private = name.startswith("_") or name in self.__slots__
            if private or not hasattr(type(self.stream), name):
                msg = f"{type(self).__name__!r} has no attribute {name!r}"
                raise AttributeError(msg)
            msg = (
                f"operator {self.name!r}: {name} directly after window(...): its windows compute nothing; "
                "call aggregate(n='count(*)'), reduce, aggregate_with, top_n or process on them first"
            )
            raise checks.MissingMethodError(msg)

    @property
    def name(self) -> str:
        return self.given_name or self.stream.graph.free_name("window")

    def aggregate(
        self,
        *,
        then: Then | None = None,
        schema: Schema | str | None = None,
        name: str | None = None,
        **aggregates: str,
    ) -> _StreamT:
        """Compute built-in aggregates: ``aggregate(total="sum(price)", n="count(*)")``.

        No Python runs per record.

        Args:
            then: Makes the outputs from one record of the aggregates, with access to the window.
            schema: The columns of what ``then`` emits, as Spark DDL.
            name: The operator's name, if `Stream.window` has none.
            aggregates: Output column to one Spark SQL aggregate over any row expressions.

        Raises:
            PlanError: A text is not one known aggregate, a column is unknown or named twice, or only
                one of ``then`` and ``schema`` is given.
        """
        checks.require_aggregate_name(name)
        if name is not None:
            return self._named(name).aggregate(then=then, schema=schema, **aggregates)
        if not aggregates:
            checks.refuse(f"operator {self.name!r} computes nothing; pass for instance total='sum(price)'")
        found = parse_window_aggregates(self.stream.operator, self.name, aggregates)
        used = self.template.uses if window_checks.reads_records(self.template.config) else ()
        return self._append(
            WindowAggregate(BuiltIns(found.columns), self._then(then, schema)),
            schema,
            uses=tuple(dict.fromkeys((*used, *found.uses))),
            values=tuple(aggregates),
            computed=found.computed,
            sql=tuple(aggregates.items()),
        )

    def aggregate_with(
        self,
        function: AggregateFunction,
        *,
        schema: Schema | str,
        then: Then | None = None,
        name: str | None = None,
    ) -> _StreamT:
        """Fold records with a Python aggregate as they arrive; one accumulator is kept.

        Args:
            function: ``create()``, ``add(accumulator, record)``, ``merge(first, second)`` and
                ``result(accumulator)``, which gives a record; accumulators are plain data.
            schema: The columns of what is emitted, as Spark DDL.
            then: Makes the outputs of the one result.
            name: As for `aggregate`.

        Raises:
            PlanError: ``function`` is not an aggregate function.
        """
        if name is not None:
            return self._named(name).aggregate_with(function, schema=schema, then=then)
        window_checks.require_aggregate_function(function, self.name)
        return self._append(
            WindowAggregate(function, None if then is None else self._then(then, schema)), schema
        )

    def reduce(
        self,
        function: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]],
        *,
        then: Then | None = None,
        schema: Schema | str | None = None,
        name: str | None = None,
    ) -> _StreamT:
        """Fold two records into one of the same columns; one record is kept.

        Args:
            function: ``(kept, new) -> kept``; associative.
            then: Makes the outputs of the one record.
            schema: The columns of what ``then`` emits, as Spark DDL.
            name: As for `aggregate`.

        Raises:
            PlanError: ``function`` is not callable, or only one of ``then`` and ``schema`` is given.
        """
        if name is not None:
            return self._named(name).reduce(function, then=then, schema=schema)
        require_function(function, self.name, ("kept", "new"))
        values = tuple(column for column in self.template.uses if column not in self.template.by)
        return self._append(WindowReduce(function, self._then(then, schema)), schema, values=values)

    def top_n(
        self,
        n: int,
        *,
        order: str | Sequence[str],
        ties: bool = False,
        rank: str = "rank",
        name: str | None = None,
    ) -> _StreamT:
        """Emit the first ``n`` records of each window in an order, once, with their rank from 1.

        No other record is kept, and no function of yours is called. It is Flink SQL's Window Top-N.

        Args:
            order: Columns such as ``"price desc"``; without ``desc`` small values come first. Nulls are the
                smallest values, as in Spark. Equal records are in order of arrival, those of merged sessions
                one session after the other.
            ties: Emit all records that are equal to the last one in the order, too. Equal ones have one rank
                then, as by SQL's ``RANK``.
            rank: The name of the column of the rank, which is added after those of the records.
            name: As for `aggregate`.

        Raises:
            PlanError: A column is unknown or not in ``uses``, there is one named ``rank``, the order names
                none, ``n`` is not positive, or the windows may emit several times.
        """
        if name is not None:
            return self._named(name).top_n(n, order=order, ties=ties, rank=rank)
        window_checks.require_one_firing(self.template.config, self.name)
        if not isinstance(ties, bool):
            checks.refuse(f"operator {self.name!r}: ties={ties!r} is no choice; pass True or False")
        parsed = window_checks.rank_order(self.stream.operator, self.name, n, order)
        for column, _ in parsed:
            window_checks.require_used(column, self.template, self.name)
        kept = tuple(column for column in self.template.uses if column not in self.template.by)
        window_checks.require_rank_name(rank, (*self.template.by, *kept, *WINDOW_COLUMNS), self.name)
        ranking = TopRows(order=parsed, n=n, rank=rank, ties=ties)
        return self._append(WindowAggregate(ranking, EachRow()), None, values=(*kept, rank))

    def process(self, function: Then, *, schema: Schema | str, name: str | None = None) -> _StreamT:
        """Call a Python function with all records of a window; all of them are kept until it ends.

        Args:
            function: ``(context, records) -> outputs``, or an object with ``process`` and ``clear``; see
                `flowcore.windows.ProcessFunction`.
            schema: The columns of the records it emits, as Spark DDL.
            name: As for `aggregate`.

        Raises:
            PlanError: ``function`` is not a function.
        """
        if name is not None:
            return self._named(name).process(function, schema=schema)
        return self._append(WindowProcess(window_checks.process_function(function, self.name)), schema)

    def _named(self, name: str) -> "WindowedStream[_StreamT]":
        """The same windows under a name that was given with their function."""
        if self.given_name not in (None, name):
            checks.refuse(
                f"operator {self.given_name!r} is also named {name!r}: it could not be found by one of the "
                "names; give name= to window(...) or to its function, not to both"
            )
        return replace(self, given_name=name)

    def _then(self, then: Then | None, schema: Schema | str | None) -> ProcessFunction | None:
        if (then is None) != (schema is None):
            given, missing = ("then", "schema") if schema is None else ("schema", "then")
            checks.refuse(
                f"operator {self.name!r}: {given}= without {missing}=: its output would be unknown; pass "
                "both, for instance then=label, schema='label STRING', or neither"
            )
        return None if then is None else window_checks.process_function(then, self.name)

    def _append(
        self,
        function: WindowFunction,
        schema: Schema | str | None,
        *,
        values: tuple[str, ...] = (),
        computed: tuple[tuple[str, Expression], ...] = (),
        **fields: Any,
    ) -> _StreamT:
        """Add the operator with its function; ``values`` are its columns where no schema says them."""
        template = self.template
        config = replace(template.config, function=function)
        types = None if schema is None else Schema.parse(schema)
        values = values if types is None else types.names
        added = {each.lower(): "of by=" for each in template.by}
        added |= dict.fromkeys(WINDOW_COLUMNS, "of each window")
        for column in types.names if types is not None else ():
            if (what := added.get(column.lower())) is not None:
                checks.refuse(
                    f"operator {self.name!r}: schema= has the column {column!r}, and windows add the columns "
                    f"{what} themselves: it would be there twice; leave {column} out of schema"
                )
        columns = (*template.by, *values, *WINDOW_COLUMNS)
        change = "give the aggregate another keyword" if isinstance(function, WindowAggregate) else ""
        checks.require_distinct(self.name, columns, change)
        key = (*template.by, *WINDOW_COLUMNS[:2]) if window_checks.replaces_itself(config) else None
        return self.stream.append(
            replace(
                template, name=self.name, columns=columns, key=key, config=config,
                computed=(*template.computed, *computed), values=values, schema=types, **fields,
            )
        )  # fmt: skip
