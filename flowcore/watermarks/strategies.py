"""Strategies: what does a user declare about the order of a source's records?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from flowcore.durations import MILLISECOND, show_duration
from flowcore.errors import ConfigurationError

__all__ = [
    "BoundedOutOfOrderness",
    "Generator",
    "NoWatermarks",
    "Punctuated",
    "WatermarkStrategy",
    "bounded_out_of_orderness",
    "monotonous",
    "no_watermarks",
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


Generator = NoWatermarks | BoundedOutOfOrderness | Punctuated


@dataclass(frozen=True, slots=True)
class WatermarkStrategy:
    """A generator of watermarks and, if partitions may fall silent, how long they are waited for.

    Args:
        generator: What the records of a partition say about event time.
        idle_after_ms: A partition without records for longer than this is not waited for; None: for ever.

    Raises:
        ConfigurationError: The time is not positive, or there are no watermarks that could wait.
    """

    generator: Generator
    idle_after_ms: int | None = None

    def __post_init__(self) -> None:
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

    def with_idleness(self, idle_after: timedelta) -> WatermarkStrategy:
        """The same strategy that does not wait for partitions without records.

        Args:
            idle_after: A partition is idle once it had no record for longer than this.

        Raises:
            ConfigurationError: It is zero or less, or there are no watermarks that could wait.

        >>> str(monotonous().with_idleness(timedelta(minutes=1)))
        'monotonous, idle after 1 min'
        """
        return replace(self, idle_after_ms=_whole_ms("idle_after", idle_after))

    def __str__(self) -> str:
        if self.idle_after_ms is None:
            return str(self.generator)
        return f"{self.generator}, idle after {show_duration(self.idle_after_ms * MILLISECOND)}"


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


def _whole_ms(name: str, length: timedelta) -> int:
    if not isinstance(length, timedelta) or length % MILLISECOND:
        msg = (
            f"{name}={length!r} is not a number of whole milliseconds: event time has no smaller unit; pass "
            "for instance timedelta(seconds=4)"
        )
        raise ConfigurationError(msg)
    return length // MILLISECOND
