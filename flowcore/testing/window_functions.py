"""Functions of windows for tests; their accumulators are plain data."""

from dataclasses import dataclass
from typing import Any

__all__ = ["CollectList", "CountRecords", "Sum"]


@dataclass(frozen=True, slots=True)
class Sum:
    """An aggregate function: the sum of the values."""

    def create(self) -> Any:
        return 0

    def add(self, accumulator: Any, value: Any, /) -> Any:
        return accumulator + value

    def merge(self, first: Any, second: Any, /) -> Any:
        return first + second

    def result(self, accumulator: Any, /) -> Any:
        return accumulator


@dataclass(frozen=True, slots=True)
class CountRecords:
    """An aggregate function: the number of records."""

    def create(self) -> int:
        return 0

    def add(self, accumulator: int, value: Any, /) -> int:  # noqa: ARG002 - an aggregate's signature
        return accumulator + 1

    def merge(self, first: int, second: int, /) -> int:
        return first + second

    def result(self, accumulator: int, /) -> int:
        return accumulator


class CollectList:
    """A process function whose output is the list of values in order of arrival."""

    def process(self, context: Any, values: Any, /) -> list[list[Any]]:  # noqa: ARG002 - a process function's signature
        return [list(values)]

    def clear(self, context: Any, /) -> None:
        pass
