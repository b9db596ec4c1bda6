"""Contents of windows: what a window stores of its records until it emits.

A content is either one accumulator, if the function folds records as they arrive, or all records. Function
and evictor alone decide which. Contents are plain state; this module has the logic.

Windows share the records that they store, so functions get copies: what they change is in no other window and
no later firing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import Any, NamedTuple

from flowcore.keyed.copies import deep_copy
from flowcore.windows.built_in import BuiltIns
from flowcore.windows.functions import WindowAggregate, WindowFunction, WindowProcess, WindowReduce
from flowcore.windows.top_rows import TopRows

__all__ = ["Accumulating", "Buffering", "Content", "ContentLogic", "StoredRecord"]


class StoredRecord(NamedTuple):
    """A record in a window.

    Attributes:
        timestamp_ms: Its event time, None if it has none.
    """

    timestamp_ms: int | None
    value: Any


Content = list[StoredRecord]
"""The records in order of arrival, those of merged windows one window after the other; or one that stands for
all, with an accumulator as its value."""


@dataclass(frozen=True, slots=True)
class Buffering:
    """Stores every record."""

    function: WindowFunction
    layout: str = "records"

    def add(self, content: Content, record: StoredRecord, /) -> None:
        content.append(record)

    def merge(self, parts: Iterable[Content], /) -> Content:
        return [*chain.from_iterable(parts)]

    def inputs(self, content: Content, /) -> list[Any]:
        """Return the values, folded if the function folds."""
        values = [deep_copy(record.value) for record in content]
        match self.function:
            case WindowReduce(function=function):
                return [reduce(function, values)]
            case WindowAggregate(function=function):
                return [function.result(reduce(function.add, values, function.create()))]
            case WindowProcess():
                return values


@dataclass(frozen=True, slots=True)
class Accumulating:
    """Stores one accumulator."""

    function: WindowReduce | WindowAggregate

    @property
    def layout(self) -> str:
        match self.function:
            case WindowReduce():
                return "reduced"
            case WindowAggregate(function=TopRows() as ranking):
                return str(ranking)
            case WindowAggregate():
                return "accumulator"

    def add(self, content: Content, record: StoredRecord, /) -> None:
        value = record.value if _is_built_in(self.function) else deep_copy(record.value)
        match self.function:
            case WindowReduce(function=function):
                value = function(content[0].value, value) if content else value
            case WindowAggregate(function=function):
                value = function.add(content[0].value if content else function.create(), value)
        content[:] = [StoredRecord(None, value)]

    def merge(self, parts: Iterable[Content], /) -> Content:
        accumulators = [record.value for part in parts for record in part]
        if not accumulators:
            return []
        merge = (
            self.function.function
            if isinstance(self.function, WindowReduce)
            else self.function.function.merge
        )
        return [StoredRecord(None, reduce(merge, accumulators))]

    def inputs(self, content: Content, /) -> list[Any]:
        match self.function:
            case WindowReduce():
                return [deep_copy(content[0].value)]
            case WindowAggregate(function=function, then=then):
                result = function.result(content[0].value)
                return [result if then is None else deep_copy(result)]


ContentLogic = Buffering | Accumulating
"""Adds records to contents, merges contents of windows that became one, and reads the function's input."""


def _is_built_in(function: WindowFunction) -> bool:
    """Whether a function changes no records."""
    return isinstance(function, WindowAggregate) and isinstance(function.function, BuiltIns | TopRows)
