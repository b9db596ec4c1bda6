"""Strategies: what does a user declare about the order of a source's records?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

from flowcore.durations import MILLISECOND, show_duration
from flowcore.errors import ConfigurationError

__all__ = [
    "AllIdle",
    "BoundedOutOfOrderness",
    "Generator",
    "NoWatermarks",
    "Periodic",
    "PeriodicFunction",
    "Punctuated",
    "WatermarkStrategy",
    "bounded_out_of_orderness",
    "monotonous",
    "no_watermarks",
    "periodic",
    "punctuated",
]


@dataclass(frozen=True, slots=True)
class NoWatermarks:
    """Records never move event time; only the end of the input does."""

    def __str__(self) -> str:
        return "no watermarks"


@dataclass(frozen=True, slots=True)
class BoundedOutOfOrderness:
    """The watermark is the newest timestamp less the delay less one millisecond.

    Args:
        delay_ms: How much later than a newer record one may come; 0 where they come in order.

    Raises:
        ConfigurationError: It is negative.
    """

    delay_ms: int

    def __post_init__(self) -> None:
        if self.delay_ms < 0:
            msg = (
                f"delay_ms={self.delay_ms} is negative: the watermark would be ahead of the records that "
                "have come, and all would be late; pass a delay of zero or more"
            )
            raise ConfigurationError(msg)

    def __str__(self) -> str:
        if not self.delay_ms:
            return "monotonous"
        return f"out of order by up to {show_duration(self.delay_ms * MILLISECOND)}"


@dataclass(frozen=True, slots=True)
class Punctuated:
    """A record for which the expression is true sets the watermark to its own timestamp, at once.

    Args:
        expression: Spark SQL text over the source's columns.

    Raises:
        ConfigurationError: There is no expression.
    """

    expression: str

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str) or not self.expression.strip():
            msg = (
                f"punctuated({self.expression!r}) says of no record that it is a marker: event time would "
                "stand still; pass Spark SQL text, for instance punctuated(\"kind = 'end-of-hour'\")"
            )
            raise ConfigurationError(msg)

    def __str__(self) -> str:
        return f"punctuated by {self.expression}"


@dataclass(frozen=True, slots=True)
class Periodic:
    """What each record says of event time is computed; at each look the highest so far is the watermark.

    Args:
        expression: Spark SQL text over the source's columns, BIGINT milliseconds since 1970; null for a
            record that says nothing.

    Raises:
        ConfigurationError: There is no expression.
    """

    expression: str

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str) or not self.expression.strip():
            msg = (
                f"periodic({self.expression!r}) says nothing of event time: it would stand still; pass Spark "
                "SQL text, for instance periodic('unix_millis(at) - 4000'), or a function"
            )
            raise ConfigurationError(msg)

    def __str__(self) -> str:
        return f"periodic, {self.expression}"


@dataclass(frozen=True, slots=True)
class PeriodicFunction:
    """A function says how far event time has come, from the timestamps of a batch of one partition.

    Args:
        function: ``timestamps -> milliseconds or None``; gets a ``pyarrow.Array`` of int64, in which null is
            a record without timestamp. It has to be pure: batches may come in parts, and again.

    Raises:
        ConfigurationError: It cannot be called.
    """

    function: Callable[[Any], int | None]

    def __post_init__(self) -> None:
        given: object = self.function
        if not callable(given):
            msg = (
                f"periodic({self.function!r}) is neither Spark SQL text nor a function: event time would "
                "stand still; pass for instance periodic('unix_millis(at) - 4000')"
            )
            raise ConfigurationError(msg)

    def __str__(self) -> str:
        return f"periodic by {getattr(self.function, '__qualname__', type(self.function).__qualname__)}"


Generator = NoWatermarks | BoundedOutOfOrderness | Punctuated | Periodic | PeriodicFunction

AllIdle = Literal["hold", "advance"]
"""What event time does while no partition has records: stand still, or go on as the clock does."""


@dataclass(frozen=True, slots=True)
class WatermarkStrategy:
    """A generator of watermarks, and what becomes of partitions that fall silent or run ahead.

    Args:
        generator: What the records of a partition say about event time.
        idle_after_ms: A partition without records for longer than this is not waited for; None: for ever.
        all_idle: What event time does while all partitions are idle.
        max_drift_ms: A partition further than this ahead of the slowest is held back; None: never.

    Raises:
        ConfigurationError: A time is not positive, or a part would have no effect.
    """

    generator: Generator
    idle_after_ms: int | None = None
    all_idle: AllIdle = "hold"
    max_drift_ms: int | None = None

    def __post_init__(self) -> None:
        known = self.all_idle == "hold" or (self.all_idle == "advance" and self.idle_after_ms is not None)
        if not known:
            msg = (
                f"all_idle={self.all_idle!r} with idle_after_ms={self.idle_after_ms}: it would have no "
                "effect; pass 'hold', or 'advance' with a time after which partitions are idle"
            )
            raise ConfigurationError(msg)
        if self.max_drift_ms is not None and (self.max_drift_ms <= 0 or not self.generates):
            msg = (
                f"max_drift_ms={self.max_drift_ms} of {self}: no partition could ever be ahead by that; pass "
                "more than zero, to a strategy with watermarks"
            )
            raise ConfigurationError(msg)
        if self.idle_after_ms is None:
            return
        if self.idle_after_ms <= 0:
            msg = (
                f"idle_after_ms={self.idle_after_ms} is not positive: every partition would be idle between "
                "any two records; pass more than the longest pause of a partition that is not idle"
            )
            raise ConfigurationError(msg)
        if not self.generates:
            msg = (
                f"no_watermarks() with idle_after_ms={self.idle_after_ms}: nothing waits for a partition "
                "where there are no watermarks, so it would have no effect; leave one of them"
            )
            raise ConfigurationError(msg)

    @property
    def generates(self) -> bool:
        """Records move event time."""
        return not isinstance(self.generator, NoWatermarks)

    def with_idleness(self, idle_after: timedelta, *, all_idle: AllIdle = "hold") -> WatermarkStrategy:
        """The same strategy that does not wait for partitions without records.

        Args:
            idle_after: A partition is idle once it had no record for longer than this.
            all_idle: While all partitions are idle event time stands still (``"hold"``), or goes on as the
                clock does (``"advance"``): windows close, and records that come later may be late.

        Raises:
            ConfigurationError: It is zero or less, or there are no watermarks that could wait.

        >>> str(monotonous().with_idleness(timedelta(minutes=1)))
        'monotonous, idle after 1 min'
        """
        return replace(self, idle_after_ms=_whole_ms("idle_after", idle_after), all_idle=all_idle)

    def with_alignment(self, max_drift: timedelta) -> WatermarkStrategy:
        """The same strategy that holds partitions back which are too far ahead.

        Args:
            max_drift: A partition whose watermark is further than this ahead of the slowest one's is not
                read until that has caught up.

        Raises:
            ConfigurationError: It is zero or less, or there are no watermarks to compare.
        """
        return replace(self, max_drift_ms=_whole_ms("max_drift", max_drift))

    def __str__(self) -> str:
        parts = [str(self.generator)]
        if self.idle_after_ms is not None:
            parts.append(f"idle after {show_duration(self.idle_after_ms * MILLISECOND)}")
        if self.all_idle == "advance":
            parts.append("with the clock while all are idle")
        if self.max_drift_ms is not None:
            parts.append(f"aligned within {show_duration(self.max_drift_ms * MILLISECOND)}")
        return ", ".join(parts)


def no_watermarks() -> WatermarkStrategy:
    """Event time stands still until the input ends; the same as no strategy at all."""
    return WatermarkStrategy(NoWatermarks())


def bounded_out_of_orderness(delay: timedelta) -> WatermarkStrategy:
    """Records come at most so much later than newer ones: the watermark is that, and 1 ms, behind the newest.

    Args:
        delay: Zero or more, in whole milliseconds.

    Raises:
        ConfigurationError: It is negative, or no `timedelta` of whole milliseconds.

    >>> bounded_out_of_orderness(timedelta(seconds=4)).generator
    BoundedOutOfOrderness(delay_ms=4000)
    """
    return WatermarkStrategy(BoundedOutOfOrderness(_whole_ms("delay", delay)))


def monotonous() -> WatermarkStrategy:
    """Timestamps of a partition never go back: the watermark is 1 ms behind the newest."""
    return WatermarkStrategy(BoundedOutOfOrderness(0))


def punctuated(expression: str) -> WatermarkStrategy:
    """Marker records say how far event time has come: each sets the watermark to its own timestamp.

    Args:
        expression: Spark SQL text over the source's columns, true for a marker.

    Raises:
        ConfigurationError: It is no text.
    """
    return WatermarkStrategy(Punctuated(expression))


def periodic(generator: str | Callable[[Any], int | None]) -> WatermarkStrategy:
    """You say how far event time has come; at each look the highest so far is the watermark of a partition.

    Args:
        generator: Spark SQL text, what one record says: ``"unix_millis(at) - 4000"``. Or a function from the
            timestamps of a batch of one partition to milliseconds or None; see `PeriodicFunction`.

    Raises:
        ConfigurationError: It is neither.
    """
    return WatermarkStrategy(
        Periodic(generator) if isinstance(generator, str) else PeriodicFunction(generator)
    )


def _whole_ms(name: str, length: timedelta) -> int:
    if not isinstance(length, timedelta) or length % MILLISECOND:
        msg = (
            f"{name}={length!r} is not a number of whole milliseconds: event time has no smaller unit; pass "
            "for instance timedelta(seconds=4)"
        )
        raise ConfigurationError(msg)
    return length // MILLISECOND
