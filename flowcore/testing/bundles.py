"""Bundles of a number of elements, with the values of each key together, as Flink's bundle operator has them.

A bundle is finished after a number of elements, whatever their keys, and at the end of the input.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from flowcore.errors import ConfigurationError

__all__ = ["Bundle", "Finished"]

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

Finished = Mapping[_K, list[_V]]
"""The values of each key of a finished bundle, in order of arrival; empty if none was finished."""


@dataclass(slots=True)
class Bundle(Generic[_K, _V]):
    """The bundle that is being filled.

    Args:
        count: How many elements make a bundle, > 0.

    Attributes:
        values: The values of each key, in order of arrival.
        finished: How many bundles were finished before it.

    Raises:
        ConfigurationError: The count is not positive.

    >>> bundle = Bundle(2)
    >>> bundle.add("a", 1)
    {}
    >>> bundle.add("a", 2)
    {'a': [1, 2]}
    """

    count: int
    values: dict[_K, list[_V]] = field(default_factory=dict)
    finished: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            msg = f"count={self.count} is not positive: no bundle would ever be finished; pass count > 0"
            raise ConfigurationError(msg)

    def add(self, key: _K, value: _V) -> Finished[_K, _V]:
        """Take one element; the last one of a bundle finishes it."""
        self.values.setdefault(key, []).append(value)
        return self.finish() if sum(map(len, self.values.values())) >= self.count else {}

    def finish(self) -> Finished[_K, _V]:
        """Finish the bundle as it is, as at the end of the input; an empty one does not count."""
        values, self.values = self.values, {}
        self.finished += bool(values)
        return values
