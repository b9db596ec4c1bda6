"""Contents: what is kept of a window's records until it emits?

Either one accumulator, where the function folds records as they come, or the records themselves, where
it has to see them all. Which one is decided by function and evictor alone. Contents are plain state; the
logic is here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple, Protocol

from flowcore.windows.functions import WindowAggregate, WindowFunction, WindowProcess, WindowReduce

__all__ = ["Accumulating", "Buffering", "Content", "ContentLogic", "HeldRecord"]


class HeldRecord(NamedTuple):
    """A record in a window.

    Attributes:
        arrival: The how-many-th record of its key it was.
        timestamp_ms: When it happened, None if it did not say.
        value: What it says.
    """

    arrival: int
    timestamp_ms: int | None
    value: Any


Content = list[HeldRecord]
"""What is kept: the records, or one that stands for all, with an accumulator as its value."""


class ContentLogic(Protocol):
    """How contents are made and read.

    Attributes:
        layout: A name for what is kept; state with another layout cannot be restored.
    """

    @property
    def layout(self) -> str: ...

    def add(self, content: Content, record: HeldRecord, /) -> None:
        """Put a record in."""
        ...

    def merge(self, parts: Iterable[Content], /) -> Content:
        """The content of windows that became one; in order of arrival."""
        ...

    def inputs(self, content: Content, /) -> list[Any]:
        """What the function's last step works on."""
        ...


@dataclass(frozen=True, slots=True)
class Buffering:
    """Every record is kept."""

    function: WindowFunction
    layout: str = "records"

    def add(self, content: Content, record: HeldRecord, /) -> None:
        """Append it."""
        content.append(record)

    def merge(self, parts: Iterable[Content], /) -> Content:
        """Sort by arrival."""
        return sorted((record for part in parts for record in part), key=lambda record: record.arrival)

    def inputs(self, content: Content, /) -> list[Any]:
        """The values, folded if the function folds."""
        values = [record.value for record in content]
        match self.function:
            case WindowReduce(function=function):
                return [reduce(function, values)]
            case WindowAggregate(function=function):
                return [function.result(reduce(function.add, values, function.create()))]
            case WindowProcess():
                return values


@dataclass(frozen=True, slots=True)
class Accumulating:
    """One accumulator is kept, whose arrival is that of the first record in it."""

    function: WindowReduce | WindowAggregate

    @property
    def layout(self) -> str:
        """Reduced values and accumulators are different things."""
        return "reduced" if isinstance(self.function, WindowReduce) else "accumulator"

    def add(self, content: Content, record: HeldRecord, /) -> None:
        """Fold it in."""
        match self.function:
            case WindowReduce(function=function):
                value = function(content[0].value, record.value) if content else record.value
            case WindowAggregate(function=function):
                value = function.add(content[0].value if content else function.create(), record.value)
        first = content[0] if content else record
        content[:] = [HeldRecord(first.arrival, None, value)]

    def merge(self, parts: Iterable[Content], /) -> Content:
        """Combine, the one that began first first."""
        ordered: Sequence[HeldRecord] = sorted(
            (record for part in parts for record in part), key=lambda record: record.arrival
        )
        if not ordered:
            return []
        match self.function:
            case WindowReduce(function=function):
                value = reduce(function, (record.value for record in ordered))
            case WindowAggregate(function=function):
                value = reduce(function.merge, (record.value for record in ordered))
        return [HeldRecord(ordered[0].arrival, None, value)]

    def inputs(self, content: Content, /) -> list[Any]:
        """The one value."""
        match self.function:
            case WindowReduce():
                return [content[0].value]
            case WindowAggregate(function=function):
                return [function.result(content[0].value)]
