"""The configuration of a buffer behind an operator: when is it flushed?"""

from __future__ import annotations

from dataclasses import dataclass

from flowcore.errors import ConfigurationError

__all__ = ["BufferOutput"]


@dataclass(frozen=True, slots=True)
class BufferOutput:
    """Hold back all but the latest record of each key, and let it go once an interval.

    Args:
        interval_ms: How long after a flush the next one is due, >= 0; None or 0 holds nothing back.
        keyed: Records are of keys; if not, one record is held in all.
        memory_buffer_only: The buffer may not outgrow memory: it is flushed when it is full.
        max_entries: How many records make such a buffer full, > 0; None for no bound. Without
            ``memory_buffer_only`` it has no effect.
        backlog_interval_ms: The interval while the records are history, not shorter than the other; None
            or 0 for none, so that records wait until the backlog is gone.

    Raises:
        ConfigurationError: A number is negative, or the interval of backlog is the shorter one.

    >>> BufferOutput(interval_ms=120_000).interval_ms_in(backlog=False)
    120000
    >>> BufferOutput(interval_ms=0).holds
    False
    """

    interval_ms: int | None
    keyed: bool = True
    memory_buffer_only: bool = False
    max_entries: int | None = None
    backlog_interval_ms: int | None = None

    def __post_init__(self) -> None:
        interval_ms, backlog_ms = self.interval_ms or 0, self.backlog_interval_ms or 0
        if interval_ms < 0:
            msg = (
                f"interval_ms={interval_ms} is negative: no flush would ever be due at that distance; "
                f"pass interval_ms > 0, or 0 to hold nothing back"
            )
            raise ConfigurationError(msg)
        if backlog_ms < 0:
            msg = (
                f"backlog_interval_ms={backlog_ms} is negative: no flush would ever be due at that "
                f"distance; pass backlog_interval_ms >= {interval_ms}, or 0 to wait for the backlog's end"
            )
            raise ConfigurationError(msg)
        if 0 < backlog_ms < interval_ms:
            msg = (
                f"backlog_interval_ms={backlog_ms} is shorter than interval_ms={interval_ms}: history would "
                f"be sent on more often than news; pass backlog_interval_ms >= {interval_ms}, or 0 to wait "
                f"for the end of the backlog"
            )
            raise ConfigurationError(msg)
        if self.max_entries is not None and self.max_entries < 1:
            msg = (
                f"max_entries={self.max_entries} is not positive: a buffer of that size is full before it "
                f"holds a record; pass max_entries > 0, or interval_ms=0 to hold nothing back"
            )
            raise ConfigurationError(msg)

    @property
    def holds(self) -> bool:
        """Whether anything is ever held back."""
        return bool(self.interval_ms)

    def interval_ms_in(self, *, backlog: bool) -> int | None:
        """The interval in backlog or out of it; None if there is none."""
        return (self.backlog_interval_ms if backlog else self.interval_ms) or None

    def full_at(self, entries: int) -> bool:
        """Whether a buffer of so many records must be flushed to make room."""
        return self.memory_buffer_only and self.max_entries is not None and entries >= self.max_entries
