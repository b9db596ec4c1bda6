"""Evictors: the records that a window keeps when it emits.

An evictor gets all records of a window in order of arrival, those of merged sessions one session after the
other, and returns those to keep. It runs before the function or after it. Later emissions do not contain the
removed records.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from flowcore.errors import InvalidWindowError
from flowcore.windows.arguments import length_ms, require_number
from flowcore.windows.contents import StoredRecord

__all__ = ["CountEvictor", "DeltaEvictor", "Evictor", "TimeEvictor"]


class Evictor(Protocol):
    """Selects the records to keep, before the function runs, or ``after`` it."""

    @property
    def after(self) -> bool: ...

    def keep(self, records: Sequence[StoredRecord], /) -> list[StoredRecord]:
        """Return the records to keep, in their order; there is at least one record."""


@dataclass(frozen=True, slots=True)
class CountEvictor:
    """Keeps the last ``keep_records`` records, zero or more.

    Raises:
        InvalidWindowError: The number is negative.
    """

    keep_records: int
    after: bool = False

    def __post_init__(self) -> None:
        require_number("keep_records", self.keep_records)
        if self.keep_records < 0:
            msg = f"keep_records={self.keep_records} is negative: nothing could be kept; pass zero or more"
            raise InvalidWindowError(msg)

    def keep(self, records: Sequence[StoredRecord], /) -> list[StoredRecord]:
        return list(records[max(len(records) - self.keep_records, 0) :])


@dataclass(frozen=True, slots=True, init=False)
class TimeEvictor:
    """Keeps the records less than a span older than the newest one, and those without a timestamp.

    Args:
        window_ms: The span, milliseconds or a `timedelta`, zero or more; a record exactly this much older
            than the newest is removed.

    Raises:
        InvalidWindowError: The span is negative.
    """

    window_ms: int
    after: bool = False

    def __init__(self, window_ms: int | timedelta, after: bool = False) -> None:
        object.__setattr__(self, "window_ms", length_ms("window_ms", window_ms))
        object.__setattr__(self, "after", after)
        if self.window_ms < 0:
            msg = f"window_ms={self.window_ms} is negative: no record would stay; pass zero or more"
            raise InvalidWindowError(msg)

    def keep(self, records: Sequence[StoredRecord], /) -> list[StoredRecord]:
        times_ms = [record.timestamp_ms for record in records if record.timestamp_ms is not None]
        if not times_ms:
            return list(records)
        cutoff_ms = max(times_ms) - self.window_ms
        return [r for r in records if r.timestamp_ms is None or r.timestamp_ms > cutoff_ms]


def _difference(own: Any, newest: Any) -> Any:
    return newest - own


@dataclass(frozen=True, slots=True)
class DeltaEvictor:
    """Keeps the records whose difference to the last record is below a threshold.

    Args:
        threshold: A record with this difference is removed.
        delta: The difference of the newest value (second) from a record's own (first). By default the newest
            minus the own, so that a value above the newest stays.
    """

    threshold: float
    after: bool = False
    delta: Callable[[Any, Any], Any] = _difference

    def keep(self, records: Sequence[StoredRecord], /) -> list[StoredRecord]:
        newest = records[-1].value
        # A record whose difference is not a number stays.
        return [record for record in records if not self.delta(record.value, newest) >= self.threshold]
