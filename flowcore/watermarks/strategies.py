"""Watermark strategies, which users declare with sources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

from flowcore.durations import MILLISECOND, show_given, show_ms
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
    """Records never advance event time; only the end of input does."""

    def __str__(self) -> str:
        return "no watermarks"


@dataclass(frozen=True, slots=True)
class BoundedOutOfOrderness:
    """See `bounded_out_of_orderness`; ``delay_ms`` is 0 if records are in order.

    Raises:
        ConfigurationError: The delay is negative.
    """

    delay_ms: int

    def __post_init__(self) -> None:
        if self.delay_ms < 0:
            msg = (
                f"a delay of {show_ms(self.delay_ms)} is negative: the watermark would be ahead of all "
                "records, which would be late; pass a delay of zero or more"
            )
            raise ConfigurationError(msg)

    def __str__(self) -> str:
        if not self.delay_ms:
            return "monotonous"
        return f"out of order by up to {show_ms(self.delay_ms)}"


@dataclass(frozen=True, slots=True)
class Punctuated:
    """See `punctuated`.

    Raises:
        ConfigurationError: The expression is empty.
    """

    expression: str

    def __post_init__(self) -> None:
        _require_expression(
            self.expression,
            f"punctuated({self.expression!r}) has no expression: no record would be a marker, and event time "
            "would not advance; pass Spark SQL text such as punctuated(\"kind = 'end-of-hour'\")",
        )

    def __str__(self) -> str:
        return f"punctuated by {self.expression}"


@dataclass(frozen=True, slots=True)
class Periodic:
    """See `periodic`; the expression gives BIGINT milliseconds since 1970 or null.

    Raises:
        ConfigurationError: The expression is empty.
    """

    expression: str

    def __post_init__(self) -> None:
        _require_expression(
            self.expression,
            f"periodic({self.expression!r}) has no expression: event time would not advance; pass Spark SQL "
            "text such as periodic('unix_millis(at) - 4000'), or a function",
        )

    def __str__(self) -> str:
        return f"periodic, {self.expression}"


@dataclass(frozen=True, slots=True)
class PeriodicFunction:
    """A function computes event time from the timestamps of a batch of one partition.

    Args:
        function: ``timestamps -> milliseconds or None``; gets a ``pyarrow.Array`` of int64; records
            without timestamp are not in it. It must be pure: batches may be split or repeated.

    Raises:
        ConfigurationError: The function is not callable.
    """

    function: Callable[[Any], int | None]

    def __post_init__(self) -> None:
        given: object = self.function
        if not callable(given):
            msg = (
                f"periodic({self.function!r}) is neither Spark SQL text nor a function: event time would "
                "not advance; pass for instance periodic('unix_millis(at) - 4000')"
            )
            raise ConfigurationError(msg)

    def __str__(self) -> str:
        return f"periodic by {getattr(self.function, '__qualname__', type(self.function).__qualname__)}"


Generator = NoWatermarks | BoundedOutOfOrderness | Punctuated | Periodic | PeriodicFunction

AllIdle = Literal["hold", "advance"]
"""What the watermark does while all partitions are idle: stay, or advance with processing time."""


@dataclass(frozen=True, slots=True)
class WatermarkStrategy:
    """A generator of watermarks, and the treatment of partitions that are idle or ahead.

    Args:
        idle_after_ms: A partition without records for longer than this is idle; None: it is never idle.
        all_idle: What the watermark does while all partitions are idle.
        max_drift_ms: A partition further than this ahead of the slowest should pause; None: it never does.

    Raises:
        ConfigurationError: A time is not positive, or a setting would have no effect.
    """

    generator: Generator
    idle_after_ms: int | None = None
    all_idle: AllIdle = "hold"
    max_drift_ms: int | None = None

    def __post_init__(self) -> None:
        known = self.all_idle == "hold" or (self.all_idle == "advance" and self.idle_after_ms is not None)
        if not known:
            msg = (
                f"all_idle={self.all_idle!r} without idle_after, or of another name: it would have no "
                "effect; pass 'hold', or 'advance' with idle_after"
            )
            raise ConfigurationError(msg)
        if self.max_drift_ms is not None and (self.max_drift_ms <= 0 or not self.generates):
            msg = (
                f"max_drift={show_ms(self.max_drift_ms)} of {self}: no partition could ever be ahead by "
                "that; pass more than zero, to a strategy with watermarks"
            )
            raise ConfigurationError(msg)
        if self.idle_after_ms is not None and self.idle_after_ms <= 0:
            msg = (
                f"idle_after={show_ms(self.idle_after_ms)} is not positive: every partition would be idle "
                "between two records; pass more than the longest pause of an active partition"
            )
            raise ConfigurationError(msg)
        if self.idle_after_ms is not None and not self.generates:
            msg = (
                f"no_watermarks() with idle_after={show_ms(self.idle_after_ms)}: it would have no effect, "
                "since there are no watermarks that idle partitions could hold; remove one of them"
            )
            raise ConfigurationError(msg)

    @property
    def generates(self) -> bool:
        """Records advance event time."""
        return not isinstance(self.generator, NoWatermarks)

    @property
    def by_timestamp(self) -> bool:
        """Event time advances with the timestamp of each record, whatever its columns are."""
        return self.generates and not isinstance(self.generator, Punctuated | Periodic)

    @property
    def periodic(self) -> bool:
        """Polls emit its watermarks, every ``pipeline.auto-watermark-interval``."""
        return self.generates and not isinstance(self.generator, Punctuated)

    def with_idleness(self, idle_after: timedelta, *, all_idle: AllIdle = "hold") -> WatermarkStrategy:
        """The same strategy, in which partitions without records become idle.

        Args:
            idle_after: A partition without records for longer than this is idle.
            all_idle: While all partitions are idle the watermark stays (``"hold"``), or advances with
                processing time (``"advance"``): windows close, and later records may be late.

        Raises:
            ConfigurationError: The time is zero or less, or there are no watermarks.

        >>> str(monotonous().with_idleness(timedelta(minutes=1)))
        'monotonous, idle after 1 min'
        """
        return replace(self, idle_after_ms=_whole_ms("idle_after", idle_after), all_idle=all_idle)

    def with_alignment(self, max_drift: timedelta) -> WatermarkStrategy:
        """The same strategy, in which partitions that are too far ahead should pause.

        Args:
            max_drift: How far the watermark of a partition may be ahead of the slowest one.

        Raises:
            ConfigurationError: The drift is zero or less, or there are no watermarks to compare.
        """
        return replace(self, max_drift_ms=_whole_ms("max_drift", max_drift))

    def __str__(self) -> str:
        parts = [str(self.generator)]
        if self.idle_after_ms is not None:
            parts.append(f"idle after {show_ms(self.idle_after_ms)}")
        if self.all_idle == "advance":
            parts.append("with processing time while all are idle")
        if self.max_drift_ms is not None:
            parts.append(f"aligned within {show_ms(self.max_drift_ms)}")
        return ", ".join(parts)


def no_watermarks() -> WatermarkStrategy:
    """Event time does not advance until the input ends; the same as no strategy."""
    return WatermarkStrategy(NoWatermarks())


def bounded_out_of_orderness(delay: timedelta) -> WatermarkStrategy:
    """Records arrive at most this much later than newer ones.

    The watermark is the newest timestamp less the delay less one millisecond.

    Args:
        delay: Zero or more, in whole milliseconds.

    Raises:
        ConfigurationError: The delay is negative, or not a `timedelta` of whole milliseconds.

    >>> bounded_out_of_orderness(timedelta(seconds=4)).generator
    BoundedOutOfOrderness(delay_ms=4000)
    """
    return WatermarkStrategy(BoundedOutOfOrderness(_whole_ms("delay", delay)))


def monotonous() -> WatermarkStrategy:
    """Timestamps of a partition never decrease: the watermark is the newest less one millisecond."""
    return WatermarkStrategy(BoundedOutOfOrderness(0))


def punctuated(expression: str) -> WatermarkStrategy:
    """Marker records advance event time: each sets the watermark to its own timestamp.

    Args:
        expression: Spark SQL text over the source's columns, true for a marker.

    Raises:
        ConfigurationError: The expression is not text.
    """
    return WatermarkStrategy(Punctuated(expression))


def periodic(generator: str | Callable[[Any], int | None]) -> WatermarkStrategy:
    """An expression or a function computes event time; the watermark of a partition is the highest value.

    Args:
        generator: Spark SQL text over a record, such as ``"unix_millis(at) - 4000"``. Or a function from the
            timestamps of a batch of one partition to milliseconds or None; see `PeriodicFunction`.

    Raises:
        ConfigurationError: The generator is neither.
    """
    return WatermarkStrategy(
        Periodic(generator) if isinstance(generator, str) else PeriodicFunction(generator)
    )


def _require_expression(expression: object, msg: str) -> None:
    if not isinstance(expression, str) or not expression.strip():
        raise ConfigurationError(msg)


def _whole_ms(name: str, length: timedelta) -> int:
    if not isinstance(length, timedelta) or length % MILLISECOND:
        msg = (
            f"{name}={show_given(length)} is not a time in whole milliseconds: event time has no smaller "
            "unit; pass for instance timedelta(seconds=4)"
        )
        raise ConfigurationError(msg)
    return length // MILLISECOND
