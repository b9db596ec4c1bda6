"""Evictors: which records of a window are let go when it emits?

An evictor sees all records of a window in their order of arrival, and returns those that stay. It runs
before the function, or after it; what it removes is gone for later emissions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flowcore.errors import InvalidWindowError
from flowcore.windows.contents import HeldRecord

__all__ = ["CountEvictor", "DeltaEvictor", "Evictor", "TimeEvictor"]


class Evictor(Protocol):
    """Anything that can say which records stay.

    Attributes:
        after: It runs after the function instead of before.
    """

    @property
    def after(self) -> bool: ...

    def keep(self, records: Sequence[HeldRecord], /) -> list[HeldRecord]:
        """The records that stay, in their order; there is at least one record."""
        ...


@dataclass(frozen=True, slots=True)
class CountEvictor:
    """Keeps the records that came last.

    Args:
        keep_records: How many, zero or more.
        after: Runs after the function.

    Raises:
        InvalidWindowError: The number is negative.
    """

    keep_records: int
    after: bool = False

    def __post_init__(self) -> None:
        if self.keep_records < 0:
            msg = f"keep_records={self.keep_records} is negative: nothing can be kept so; pass zero or more"
            raise InvalidWindowError(msg)

    def keep(self, records: Sequence[HeldRecord], /) -> list[HeldRecord]:
        """The last ones."""
        return list(records[max(len(records) - self.keep_records, 0) :])


@dataclass(frozen=True, slots=True)
class TimeEvictor:
    """Keeps the records with a timestamp above the newest one less a span.

    Records without a timestamp stay.

    Args:
        window_ms: The span, zero or more; a record exactly this much older than the newest goes.
        after: Runs after the function.

    Raises:
        InvalidWindowError: The span is negative.
    """

    window_ms: int
    after: bool = False

    def __post_init__(self) -> None:
        if self.window_ms < 0:
            msg = f"window_ms={self.window_ms} is negative: no record would stay; pass zero or more"
            raise InvalidWindowError(msg)

    def keep(self, records: Sequence[HeldRecord], /) -> list[HeldRecord]:
        """The young ones."""
        times_ms = [record.timestamp_ms for record in records if record.timestamp_ms is not None]
        if not times_ms:
            return list(records)
        cutoff_ms = max(times_ms) - self.window_ms
        return [r for r in records if r.timestamp_ms is None or r.timestamp_ms > cutoff_ms]


def _difference(own: Any, newest: Any) -> Any:
    return newest - own


@dataclass(frozen=True, slots=True)
class DeltaEvictor:
    """Keeps the records that are less than a threshold away from the one that came last.

    Args:
        threshold: A record this far away goes.
        after: Runs after the function.
        delta: How far the newest value (second) is from a record's own (first); their difference if not
            given, so that a value above the newest stays.
    """

    threshold: float
    after: bool = False
    delta: Callable[[Any, Any], Any] = _difference

    def keep(self, records: Sequence[HeldRecord], /) -> list[HeldRecord]:
        """The near ones."""
        newest = records[-1].value
        return [record for record in records if self.delta(record.value, newest) < self.threshold]
