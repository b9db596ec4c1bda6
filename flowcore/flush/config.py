"""When the buffer of an operator's output is flushed."""

from dataclasses import dataclass

from flowcore.errors import ConfigurationError

__all__ = ["BufferOutput"]


@dataclass(frozen=True, slots=True)
class BufferOutput:
    """Buffers the latest record of each key, and flushes the buffer once an interval.

    Args:
        interval_ms: Time from one flush to the next, >= 0; None or 0 buffers nothing.
        keyed: Records have keys; if False, one record is buffered in all.
        memory_buffer_only: The buffer must fit into memory: a full buffer is flushed.
        max_entries: How many records make such a buffer full, > 0; None for no bound. Has no effect without
            ``memory_buffer_only``.
        backlog_interval_ms: The interval during backlog, not shorter than the other; None or 0 buffers
            records until the backlog has been processed.
        gather_ms: Time after the flush of an upstream buffer after which this one is flushed too, > 0; None
            if there is none, or if it is flushed more often than this one.
        at_checkpoint: It is also flushed at the end of each batch, before the batch is committed.

    Raises:
        ConfigurationError: A number is negative, or the backlog's interval is the shorter one.

    >>> BufferOutput(interval_ms=120_000).interval_ms_in(backlog=False)
    120000
    >>> BufferOutput(interval_ms=0).is_enabled
    False
    """

    interval_ms: int | None
    keyed: bool = True
    memory_buffer_only: bool = False
    max_entries: int | None = None
    backlog_interval_ms: int | None = None
    gather_ms: int | None = None
    at_checkpoint: bool = False

    def __post_init__(self) -> None:
        interval_ms, backlog_ms = self.interval_ms or 0, self.backlog_interval_ms or 0
        if interval_ms < 0:
            msg = (
                f"interval_ms={interval_ms} is negative: no flush would ever be due; pass interval_ms > 0, "
                "or 0 to buffer nothing"
            )
            raise ConfigurationError(msg)
        if backlog_ms < 0:
            msg = (
                f"backlog_interval_ms={backlog_ms} is negative: no flush would ever be due during backlog; "
                f"pass backlog_interval_ms >= {interval_ms}, or 0 to wait for the end of the backlog"
            )
            raise ConfigurationError(msg)
        if 0 < backlog_ms < interval_ms:
            msg = (
                f"backlog_interval_ms={backlog_ms} is shorter than interval_ms={interval_ms}: backlog would "
                f"be emitted more often than live records; pass backlog_interval_ms >= {interval_ms}, or 0 "
                "to wait for the end of the backlog"
            )
            raise ConfigurationError(msg)
        if self.max_entries is not None and self.max_entries < 1:
            msg = (
                f"max_entries={self.max_entries} is not positive: the buffer would be full before the first "
                "record; pass max_entries > 0, or interval_ms=0 to buffer nothing"
            )
            raise ConfigurationError(msg)

    @property
    def is_enabled(self) -> bool:
        """Whether anything is buffered."""
        return bool(self.interval_ms)

    def interval_ms_in(self, *, backlog: bool) -> int | None:
        """The interval during backlog or outside of it; None if there is none."""
        return (self.backlog_interval_ms if backlog else self.interval_ms) or None

    @property
    def capacity(self) -> int | None:
        """The number of records at which the buffer is flushed; None if there is no bound."""
        return self.max_entries if self.memory_buffer_only else None
