"""Checks of what assigners, triggers, evictors and windows are made with."""

from datetime import timedelta
from typing import Any

from flowcore.durations import MILLISECOND
from flowcore.errors import InvalidWindowError

__all__ = ["length_ms", "require_number", "require_object"]


def length_ms(name: str, length: int | timedelta) -> int:
    """Convert a length of time, milliseconds or a `timedelta`, to milliseconds.

    Raises:
        InvalidWindowError: The value is neither, or has a part of a millisecond.

    >>> length_ms("interval_ms", 500), length_ms("interval_ms", timedelta(seconds=2))
    (500, 2000)
    """
    if isinstance(length, timedelta) and not length % MILLISECOND:
        return length // MILLISECOND
    if isinstance(length, int) and not isinstance(length, bool):
        return length
    msg = (
        f"{name}={length!r} is not a whole number of milliseconds: event time has no smaller unit; pass for "
        "instance timedelta(seconds=5), or 5000"
    )
    raise InvalidWindowError(msg)


def require_number(name: str, value: object) -> None:
    """Check for a whole number.

    Raises:
        InvalidWindowError: It is something else.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        msg = (
            f"{name}={value!r} is not a whole number: records could not be counted by it; pass for instance 5"
        )
        raise InvalidWindowError(msg)


def require_object(what: str, value: Any, methods: tuple[str, ...], example: str) -> None:
    """Check that a value is an object with these methods, and not their class.

    Raises:
        InvalidWindowError: It is a class, or lacks a method.
    """
    if isinstance(value, type):
        msg = f"{what}={value.__name__} is a class, not an object of it: pass for instance {example}"
        raise InvalidWindowError(msg)
    missing = [method for method in methods if not callable(getattr(value, method, None))]
    if missing:
        msg = (
            f"{what}={value!r} has no {', '.join(missing)}: a run would stop at the first record; pass for "
            f"instance {example}"
        )
        raise InvalidWindowError(msg)
