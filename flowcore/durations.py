"""Durations as text, in settings and messages, and the time now."""

import re
import time
from datetime import timedelta

__all__ = ["MILLISECOND", "parse_duration", "read_clock_ms", "show_duration", "show_given", "show_ms"]

MILLISECOND = timedelta(milliseconds=1)
_UNITS_MS = {"ms": 1, "s": 1000, "sec": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def read_clock_ms() -> int:
    """The time of the machine's clock, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def parse_duration(text: str | float | timedelta) -> timedelta:
    """Read ``"500 ms"``, ``"10s"``, ``"5 min"``, ``"1h"``, ``"2d"``; a bare ``0`` is zero.

    Raises:
        ValueError: The text is not a number with a unit, is negative, or too long.
    """
    if text < timedelta(0) if isinstance(text, timedelta) else str(text).lstrip().startswith("-"):
        msg = "a duration cannot be negative"
        raise ValueError(msg)
    if isinstance(text, timedelta):
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(text).lower())
    if match and float(match[1]) == 0 and not match[2]:
        return timedelta(0)
    if not match or match[2] not in _UNITS_MS:
        msg = f"a duration is a number with one of the units {', '.join(_UNITS_MS)}, for instance '10 s'"
        raise ValueError(msg)
    try:
        return timedelta(milliseconds=float(match[1]) * _UNITS_MS[match[2]])
    except OverflowError as error:
        msg = f"a duration is at most {timedelta.max.days} d"
        raise ValueError(msg) from error


def show_duration(length: timedelta) -> str:
    """The text of a duration in its largest whole unit, which `parse_duration` can read.

    >>> show_duration(timedelta(seconds=90)), show_duration(timedelta(0))
    ('90 s', '0')
    """
    if not length:
        return "0"
    for unit in ("d", "h", "min", "s"):
        if not length % timedelta(milliseconds=_UNITS_MS[unit]):
            return f"{length // timedelta(milliseconds=_UNITS_MS[unit])} {unit}"
    return f"{length / MILLISECOND:.12g} ms"


def show_ms(length_ms: int | None) -> str:
    """The text of a number of milliseconds, as of `show_duration`; None is zero."""
    return show_duration((length_ms or 0) * MILLISECOND)


def show_given(value: object) -> str:
    """What was given as a length of time, for an error; a number or a text with the `timedelta` of it.

    >>> show_given(timedelta(seconds=-5)), show_given("10 s")
    ('-5 s', "'10 s' (a text: pass timedelta(seconds=10))")
    """
    if isinstance(value, timedelta):
        return show_duration(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value!r} (a number: pass timedelta(seconds={value!r}))"
    if isinstance(value, str):
        try:
            seconds = parse_duration(value).total_seconds()
        except (ValueError, OverflowError):
            return f"{value!r} (a text: pass a timedelta)"
        return f"{value!r} (a text: pass timedelta(seconds={seconds:.12g}))"
    return repr(value)
