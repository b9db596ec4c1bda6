"""Aggregate functions that are always wanted; their accumulators are plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["CollectList", "CountRecords", "Sum"]


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of the values."""

    def create(self) -> Any:
        """Nothing yet."""
        return 0

    def add(self, accumulator: Any, value: Any, /) -> Any:
        """One more."""
        return accumulator + value

    def merge(self, first: Any, second: Any, /) -> Any:
        """Both."""
        return first + second

    def result(self, accumulator: Any, /) -> Any:
        """The sum."""
        return accumulator


@dataclass(frozen=True, slots=True)
class CountRecords:
    """The number of records."""

    def create(self) -> int:
        """None yet."""
        return 0

    def add(self, accumulator: int, value: Any, /) -> int:  # noqa: ARG002 - an aggregate's signature
        """One more."""
        return accumulator + 1

    def merge(self, first: int, second: int, /) -> int:
        """Both."""
        return first + second

    def result(self, accumulator: int, /) -> int:
        """The number."""
        return accumulator


class CollectList:
    """A process function whose output is the list of values, in order of arrival."""

    def process(self, context: Any, values: Any, /) -> list[list[Any]]:  # noqa: ARG002 - a process function's signature
        """One output, the list."""
        return [list(values)]

    def clear(self, context: Any, /) -> None:
        """Nothing is kept."""
