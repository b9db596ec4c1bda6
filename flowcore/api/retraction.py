"""`Stream.aggregate` over rows that replace earlier rows: a changelog of the rows, and an aggregate of it.

`Stream.top_n` over such rows reads a changelog, too; see `flowcore.api.ranking`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from flowcore.api.connectors import ADDED_LATER
from flowcore.api.decisions import Decision, Obstacle
from flowcore.api.expressions import Expression
from flowcore.api.node import Operator, Origins, trace_each, trace_to_all
from flowcore.api.stateful import CHANGE_COLUMN, IS_DELETED, StatefulOperator
from flowcore.durations import show_ms
from flowcore.windows.built_in import BuiltIn

__all__ = ["CHANGE_COLUMN", "IS_DELETED", "ChangelogNormalize", "DistinctAggregate", "RetractingAggregate"]


class _Retraction(StatefulOperator):
    """An operator that takes rows back."""

    __slots__ = ()

    def checkpoint_obstacle(self) -> Obstacle | None:
        return self.flush_obstacle()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ChangelogNormalize(_Retraction):
    """A changelog: each row, preceded by a retraction of the row of its key that it replaces.

    Its columns are those of its input and `CHANGE_COLUMN`.

    Attributes:
        by: The key under which a row replaces an earlier one.
        deleted: The column that is true where a row deletes its key; None if no row does.
        ttl_ms: The time after which a row that was not replaced is retracted; None for never.
        retracts_expired: Such a row is retracted. If not, it is forgotten, as by the join that reads it.
    """

    state_kind: ClassVar[str] = "changelog"

    by: tuple[str, ...]
    deleted: str | None = None
    ttl_ms: int | None = None
    retracts_expired: bool = field(default=True, metadata=ADDED_LATER)
    timestamp: Expression | None = None
    uses: tuple[str, ...] = ()

    def own_attributes(self) -> Mapping[str, bool]:
        return Operator.own_attributes(self)

    def describe(self) -> str:
        deleted = "" if self.deleted is None else f", deletions where {self.deleted}"
        each = "each" if self.retracts_expired else "each kept for"
        kept = "" if self.ttl_ms is None else f", {each} {show_ms(self.ttl_ms)}"
        return f"changelog of {self.state_values()} by {', '.join(self.by) or 'nothing'}{deleted}{kept}"

    def reads(self, used: Collection[str]) -> Collection[str]:
        return {*used, *StatefulOperator.reads(self, used), *([self.deleted] if self.deleted else [])}

    def types(self) -> Mapping[str, str]:
        return self.passed_types(self.inputs[0].columns)

    def state_values(self) -> str:
        return "the last row"

    def stored_columns(self, used: Collection[str]) -> tuple[str, ...]:
        kept = {*used, *([self.deleted.lower()] if self.deleted else [])}
        return tuple(name for name in self.inputs[0].columns if name.lower() in kept)

    def unbounded_state(self) -> Decision | None:
        if not self.by or self.ttl_ms is not None:
            return None
        keys = ", ".join(self.by)
        why = f"if a row of a key of {keys} that is not replaced may be taken back"
        reader = self.name.removesuffix(".changes")
        if not self.retracts_expired:
            reader, why = (
                reader.rpartition(".")[0],
                f"a time after which a row of a key of {keys} has no partner",
            )
        change = f"declare ttl= on {reader}, {why}"
        return Decision("unbounded", (f"it keeps the last row of each key of {keys}",), (change,))

    def compiled(self) -> Decision:
        return Decision("key-group", ("it keeps the last row of each key until another replaces it",))

    def own_emission(self) -> Decision:
        return Decision("at each change", ("a row takes back the one that it replaces",))

    def flush_obstacle(self) -> Obstacle:
        return Obstacle("each row that it takes back counts")

    @property
    def emits_without_input(self) -> bool:
        return self.ttl_ms is not None and self.retracts_expired


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RetractingAggregate(_Retraction):
    """One row per distinct ``by`` over the rows of a changelog, without those taken back, at each change.

    Its columns are those of ``by``, those of its values and, with a key, `IS_DELETED`.

    Attributes:
        aggregates: ``(output column, aggregate)``.
        computed: ``(name, expression)`` of arguments, as of windows.
        sql: ``(column, text)`` of the aggregates as they were written.
    """

    state_kind: ClassVar[str] = "retraction"
    keeps_timestamps = False
    has_newest_timestamp: ClassVar[bool] = True

    by: tuple[str, ...]
    aggregates: tuple[tuple[str, BuiltIn], ...]
    sql: tuple[tuple[str, str], ...]
    computed: tuple[tuple[str, Expression], ...] = ()
    uses: tuple[str, ...] = ()
    timestamp: Expression | None = None

    def own_attributes(self) -> Mapping[str, bool]:
        return {**Operator.own_attributes(self), "output_idempotent": True}

    def describe(self) -> str:
        return f"{self.state_values()} by {', '.join(self.by) or 'nothing'}, emitted at each change"

    def types(self) -> Mapping[str, str]:
        return {**({IS_DELETED: "BOOLEAN"} if self.by else {}), **self.passed_types(self.by)}

    def state_values(self) -> str:
        return f"aggregate {', '.join(f'{text} as {name}' for name, text in self.sql)} of a changelog"

    def reads(self, used: Collection[str]) -> Collection[str]:
        computed = (column for _, expression in self.computed for column in expression.columns)
        return {*StatefulOperator.reads(self, used), *computed, CHANGE_COLUMN}

    def lineage(self, known: Mapping[Operator, Origins]) -> Origins:
        inputs = self.origins(known)
        computed = {column for _, expression in self.computed for column in expression.columns}
        values = (name for name, _ in self.aggregates)
        return {**trace_each(inputs, self.by), **trace_to_all(inputs, values, {*computed, *self.uses})}

    def compiled(self) -> Decision:
        return Decision("key-group", ("Spark's own aggregate cannot take a row back", self._counted()))

    def _counted(self) -> str:
        counted = [
            text for (_, each), (_, text) in zip(self.aggregates, self.sql, strict=True)
            if each.function in {"min", "max"} or each.distinct
        ]  # fmt: skip
        return f"it counts each value, for {', '.join(counted)}" if counted else "it keeps sums and counts"

    def own_emission(self) -> Decision:
        return Decision(
            "at each change", ("a group that has another result, once between two control elements",)
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DistinctAggregate(RetractingAggregate):
    """One row per distinct ``by`` over final rows, with numbers of distinct values, at each change.

    Its columns are those of ``by`` and those of its values.
    """

    def state_values(self) -> str:
        return f"aggregate {', '.join(f'{text} as {name}' for name, text in self.sql)}"

    def unbounded_state(self) -> Decision:
        by = f" of each key of {', '.join(self.by)}" if self.by else ""
        change = "declare ttl=, or use windows, or approx_count_distinct"
        return Decision("unbounded", (f"it keeps each distinct value{by}, and removes none",), (change,))

    def compiled(self) -> Decision:
        why = "Spark's own aggregate refuses distinct values of a stream"
        return Decision("key-group", (why, self._counted()))
