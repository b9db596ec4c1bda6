"""Co-groups: which side does an aggregate name, and what is a function of groups given?

The two inputs are called ``left`` and ``right`` in aggregates, whatever their operators are called.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

from flowcore.api.expressions import Expression, resolve
from flowcore.errors import PlanError

__all__ = [
    "GROUPED",
    "BatchGroupFunction",
    "RecordGroupFunction",
    "Side",
    "SideAggregate",
    "parse_side_aggregates",
    "require_ends",
]

Side = Literal["left", "right"]
GROUPED = ("_left", "_right")
"""The columns in which a function finds the records of both sides."""


@dataclass(frozen=True, slots=True)
class SideAggregate:
    """An aggregate over the records of one side.

    Attributes:
        side: The side.
        expression: As the user wrote it.
        columns: The columns of the side that it reads, as the side spells them.
    """

    side: Side
    expression: Expression
    columns: tuple[str, ...]

    def renamed(self, record: str, names: Mapping[str, str]) -> str:
        """The text over other columns.

        Args:
            record: What stands for the whole record (``count(left)``).
            names: What stands for each column, by its name in lower case.
        """
        text, pieces, done = self.expression.text, [], 0
        for (_, start, end), field in zip(self.expression.references, self.expression.fields, strict=True):
            pieces += [text[done:start], record if field is None else names[field[0].lower()]]
            done = end if field is None else field[1]
        return "".join([*pieces, text[done:]])


def require_ends(bounded: Mapping[str, bool], operator: str) -> None:
    """Two inputs, by name, that end.

    Raises:
        PlanError: One does not; the message names both.
    """
    never = [name for name, ends in bounded.items() if not ends]
    if never:
        both = " and ".join(map(repr, bounded))
        msg = (
            f"operator {operator!r} groups {both} at the end of their input, which never comes for "
            f"{' and '.join(map(repr, never))}: nothing would ever come out; give the topic until=, or join "
            "the bounded side to the stream"
        )
        raise PlanError(msg)


def parse_side_aggregates(
    aggregates: Mapping[str, str], columns: Mapping[Side, Sequence[str]], operator: str
) -> tuple[tuple[str, SideAggregate], ...]:
    """Parse ``column="sum(left.price)"`` pairs.

    Raises:
        PlanError: One is no single aggregate, names both sides or none, or a column that its side has not.
    """
    return tuple((name, _side_aggregate(name, text, columns, operator)) for name, text in aggregates.items())


def _side_aggregate(
    name: str, text: str, columns: Mapping[Side, Sequence[str]], operator: str
) -> SideAggregate:
    expression = Expression.parse(text, operator)
    if not expression.aggregate:
        msg = (
            f"operator {operator!r}: {name}={text!r} is not one aggregate function: a group has many records "
            "and needs one value; write for instance 'sum(left.price)', and compute with it in a later select"
        )
        raise PlanError(msg)
    named = {root.lower() for root, _, _ in expression.references}
    sides: list[Side] = [side for side in columns if side in named]
    if len(named) != 1 or not sides:
        what = f"names {' and '.join(sorted(named))}" if named else "names no side"
        msg = (
            f"operator {operator!r}: {name}={text!r} {what}: it is over the records of one side; name it "
            "with each column, left.price or right.price, or count its records, count(left)"
        )
        raise PlanError(msg)
    (side,) = sides
    wanted = [field[0] for field in expression.fields if field is not None]
    resolve(wanted, columns[side], operator, f"{text!r} ({side} input)")
    lower = {column.lower() for column in wanted}
    whole = None in expression.fields and not _counts(expression)
    read = tuple(column for column in columns[side] if whole or column.lower() in lower)
    return SideAggregate(side, expression, read)


def _counts(expression: Expression) -> bool:
    """It counts records, and looks at none of their columns."""
    return "".join(expression.text.lower().split()) in ("count(left)", "count(right)")


class RecordGroupFunction(partial[Iterable[Mapping[str, Any]]]):
    """A user's function of the groups of two sides, as a function of one record: key and two lists.

    A `functools.partial`, so that everybody who asks what function it is asks the user's.

    Args:
        function: ``function(key, left, right)``, with a list of records for each side.
        on: The columns of the key; of one the function gets the value, of several a tuple.
    """

    def __call__(self, record: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
        """The user's records for one group."""
        key = tuple(record[column] for column in self.keywords["on"])
        left, right = (record[side] for side in GROUPED)
        found: Iterable[Mapping[str, Any]] = self.func(key if len(key) > 1 else key[0], left, right)
        return found


class BatchGroupFunction(partial[Any]):
    """A user's function of the groups of two sides, as a function of Arrow batches of keys and two lists.

    Args:
        function: ``function(key, left, right)``, with a record batch for each side; returns one.
        on: As for `RecordGroupFunction`.
    """

    def __call__(self, batch: Any) -> Any:
        """The user's batches for the groups of one batch, as one table."""
        import pyarrow as pa  # noqa: PLC0415 - where flows are declared, nobody needs it

        keys = zip(*(batch.column(column).to_pylist() for column in self.keywords["on"]), strict=True)
        left, right = (_groups(batch.column(side)) for side in GROUPED)
        made = [
            self.func(key if len(key) > 1 else key[0], mine, theirs)
            for key, mine, theirs in zip(keys, left, right, strict=True)
        ]
        wrong = next((each for each in made if not isinstance(each, (pa.RecordBatch, pa.Table))), None)
        if wrong is not None:
            msg = f"it returned a {type(wrong).__name__}, and no Arrow record batch or table"
            raise TypeError(msg)
        tables = [each if isinstance(each, pa.Table) else pa.Table.from_batches([each]) for each in made]
        return pa.concat_tables(tables, promote_options="permissive")


def _groups(lists: Any) -> Iterator[Any]:
    """The records of each list, as batches that share its memory."""
    import pyarrow as pa  # noqa: PLC0415 - where flows are declared, nobody needs it

    offsets = lists.offsets.to_pylist()
    for start, end in pairwise(offsets):
        yield pa.RecordBatch.from_struct_array(lists.values.slice(start, end - start))
