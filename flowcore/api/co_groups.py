"""Parts of co-groups: aggregates over one side, and functions of the records of both sides.

Aggregates call the two inputs ``left`` and ``right``, whatever their operators are called.
"""

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
"""The columns with the lists of records of both sides, from which functions of groups read."""


@dataclass(frozen=True, slots=True)
class SideAggregate:
    """An aggregate over the records of one side.

    Attributes:
        columns: The columns of the side that it reads, as the side spells them.
    """

    side: Side
    expression: Expression
    columns: tuple[str, ...]

    def rename(self, record: str, names: Mapping[str, str]) -> str:
        """The text with renamed columns, and with ``record`` for a whole record (``count(left)``)."""
        found = zip(self.expression.references, self.expression.fields, strict=True)
        return self.expression.replace(
            (start, end, record) if field is None else (start, field[1], names[field[0].lower()])
            for (_, start, end), field in found
        )


def require_ends(bounded: Mapping[str, bool], operator: str) -> None:
    """Check that both inputs, given by name, are bounded.

    Raises:
        PlanError: An input is unbounded; the message names both.
    """
    never = [name for name, ends in bounded.items() if not ends]
    if never:
        both = " and ".join(map(repr, bounded))
        msg = (
            f"operator {operator!r} groups {both} at the end of their input, which never comes for "
            f"{' and '.join(map(repr, never))}: nothing would ever be emitted; give the topic until=, or "
            "join the bounded side to the stream"
        )
        raise PlanError(msg)


def parse_side_aggregates(
    aggregates: Mapping[str, str], columns: Mapping[Side, Sequence[str]], operator: str
) -> tuple[tuple[str, SideAggregate], ...]:
    """Parse ``column="sum(left.price)"`` pairs.

    Raises:
        PlanError: A text is not one aggregate, names both sides or none, or a column that its
            side does not have.
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
    fields = [field[0] for field in expression.fields if field is not None]
    wanted = resolve(fields, columns[side], operator, f"{text!r} ({side} input)")
    counts = "".join(expression.text.lower().split()) in ("count(left)", "count(right)")
    whole = None in expression.fields and not counts
    return SideAggregate(side, expression, tuple(each for each in columns[side] if whole or each in wanted))


class RecordGroupFunction(partial[Iterable[Mapping[str, Any]]]):
    """A user's function of the groups of two sides, as a function of one record: key and two lists.

    It is a `functools.partial`, so that name, attributes and fingerprint are those of the user's function.

    Args:
        function: ``function(key, left, right)``, with a list of records for each side.
        on: The columns of the key: the function gets the value of one column, a tuple of several.
    """

    def __call__(self, record: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
        """The function's records for one group."""
        key = tuple(record[column] for column in self.keywords["on"])
        left, right = (record[side] for side in GROUPED)
        found: Iterable[Mapping[str, Any]] = self.func(key if len(key) > 1 else key[0], left, right)
        return found


class BatchGroupFunction(partial[Any]):
    """As `RecordGroupFunction`; the user's function gets a record batch for each side and returns one."""

    def __call__(self, batch: Any) -> Any:
        """The function's batches for all groups of one batch, as one table."""
        import pyarrow as pa  # noqa: PLC0415 - declaring a flow does not need it

        keys = zip(*(batch.column(column).to_pylist() for column in self.keywords["on"]), strict=True)
        left, right = (_groups(batch.column(side)) for side in GROUPED)
        made = [
            self.func(key if len(key) > 1 else key[0], mine, theirs)
            for key, mine, theirs in zip(keys, left, right, strict=True)
        ]
        wrong = next((each for each in made if not isinstance(each, (pa.RecordBatch, pa.Table))), None)
        if wrong is not None:
            msg = f"it returned a {type(wrong).__name__}, not an Arrow record batch or table"
            raise TypeError(msg)
        tables = [each if isinstance(each, pa.Table) else pa.Table.from_batches([each]) for each in made]
        return pa.concat_tables(tables, promote_options="permissive")


def _groups(lists: Any) -> Iterator[Any]:
    """The records of each list, as batches that share its memory."""
    import pyarrow as pa  # noqa: PLC0415 - declaring a flow does not need it

    offsets = lists.offsets.to_pylist()
    for start, end in pairwise(offsets):
        yield pa.RecordBatch.from_struct_array(lists.values.slice(start, end - start))
