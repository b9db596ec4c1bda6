"""Built-in aggregates: what does a window emit whose function is said in SQL?

The arguments are columns that were computed before; a record is a mapping from column to value. Folding
whole columns at once is a runtime's business: here is what they mean, for tests and for the windows (with
evictors, triggers of one's own) that are not folded by column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowcore.keyed.plain import to_plain
from flowcore.windows.folds import FOLDS, Fold

__all__ = ["BuiltIn", "BuiltIns"]


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """One aggregate.

    Args:
        function: Its name in `flowcore.windows.folds.FOLDS`.
        columns: The columns that its arguments are in; none for ``*``.
        distinct: Of equal values one counts.
        ignore_nulls: ``first_value`` and ``last_value`` pass over nulls; the others always do.
    """

    function: str
    columns: tuple[str, ...] = ()
    distinct: bool = False
    ignore_nulls: bool = False

    @property
    def fold(self) -> Fold:
        """What it keeps."""
        return FOLDS[self.function]

    @property
    def skips_nulls(self) -> bool:
        """A record whose last argument is null does not count."""
        return bool(self.columns) and (self.fold.skips_nulls or self.ignore_nulls)

    def create(self) -> Any:
        """An accumulator of nothing."""
        return {} if self.distinct else self.fold.create()

    def add(self, accumulator: Any, record: Mapping[str, Any]) -> Any:
        """One more record."""
        values = [record[column] for column in self.columns]
        if self.skips_nulls and values[-1] is None:
            return accumulator
        if self.distinct:
            accumulator.setdefault(json.dumps(to_plain(values[0])), values[0])
            return accumulator
        return self.fold.add(accumulator, *values)

    def merge(self, first: Any, second: Any) -> Any:
        """Both."""
        return {**first, **second} if self.distinct else self.fold.merge(first, second)

    def result(self, accumulator: Any) -> Any:
        """What comes out."""
        if self.distinct:
            kept = self.fold.create()
            for value in accumulator.values():
                kept = self.fold.add(kept, value)
            accumulator = kept
        return self.fold.result(accumulator)


@dataclass(frozen=True, slots=True)
class BuiltIns:
    """Several aggregates as one function; its result is a record of theirs.

    Args:
        columns: ``(output column, aggregate)``.

    >>> both = BuiltIns((("n", BuiltIn("count")), ("top", BuiltIn("max", ("price",)))))
    >>> both.result(both.add(both.create(), {"price": 3}))
    {'n': 1, 'top': 3}
    """

    columns: tuple[tuple[str, BuiltIn], ...]

    def create(self) -> list[Any]:
        """Accumulators of nothing."""
        return [each.create() for _, each in self.columns]

    def add(self, accumulator: list[Any], value: Mapping[str, Any], /) -> list[Any]:
        """One more record."""
        return [each.add(kept, value) for kept, (_, each) in zip(accumulator, self.columns, strict=True)]

    def merge(self, first: list[Any], second: list[Any], /) -> list[Any]:
        """Both."""
        parts = zip(first, second, self.columns, strict=True)
        return [each.merge(one, other) for one, other, (_, each) in parts]

    def result(self, accumulator: list[Any], /) -> dict[str, Any]:
        """A record with a column for each."""
        return {name: each.result(kept) for kept, (name, each) in zip(accumulator, self.columns, strict=True)}
