"""Readers of the values of settings: from text, or from a value of TOML, to the type of a setting.

A reader raises `ValueError` or `TypeError` with what the value must be. It does not know the setting.
"""

import re
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from flowcore.durations import MILLISECOND, parse_duration

__all__ = [
    "duration_at_least",
    "read_address",
    "read_batch",
    "read_flag",
    "read_folder",
    "read_interval",
    "read_number",
    "read_ports",
    "read_positive",
    "read_size",
    "read_text",
    "read_umask",
    "read_word",
]

_LAST_PORT = 65_535


def read_text(value: Any) -> str:
    """Text as it is."""
    if not isinstance(value, str):
        msg = "it must be text"
        raise TypeError(msg)
    return value


def read_folder(value: Any) -> Path:
    """The path of a folder; an empty text would be the current one."""
    if value == "":
        msg = "it must be the path of a folder; pass . for the current one"
        raise ValueError(msg)
    return Path(value)


def read_number(range_: str, least: int, most: int = sys.maxsize) -> Callable[[str | int], int]:
    """A reader of whole numbers in a range, which ``range_`` names in its error."""

    def read(value: str | int) -> int:
        try:
            number = least - 1 if isinstance(value, (bool, float)) else int(value)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            msg = f"it must be a whole number{range_}"
            raise ValueError(msg)
        return number

    return read


read_positive = read_number(" above zero", 1)


def read_address(value: Any) -> str:
    """The address of a web server, without a login."""
    text = read_text(value)
    if not text.startswith(("http://", "https://")):
        msg = "it must begin with http:// or https://"
        raise ValueError(msg)
    if "@" in text:
        msg = "it must not have a name and a password, which would be shown with it"
        raise ValueError(msg)
    return text


def read_flag(value: str | bool) -> bool:
    """True or false."""
    if str(value).lower() not in ("true", "false"):
        msg = "it must be true or false"
        raise ValueError(msg)
    return str(value).lower() == "true"


def read_word(*words: str) -> Callable[[Any], str]:
    """A reader of one of some words."""

    def read(value: Any) -> str:
        # YAML and TOML read a bare off as false.
        word = "off" if value is False else value
        if word not in words:
            msg = f"it must be {', '.join(words[:-1])} or {words[-1]}"
            raise ValueError(msg)
        return str(word)

    return read


def duration_at_least(seconds: int, otherwise: str) -> Callable[[str | timedelta], timedelta]:
    """A reader of durations that are not shorter; a shorter one is refused with what would happen."""

    def read(value: str | timedelta) -> timedelta:
        found = parse_duration(value)
        if found < timedelta(seconds=seconds):
            msg = f"it must be at least {seconds} s: {otherwise}"
            raise ValueError(msg)
        return found

    return read


def read_interval(value: str | timedelta) -> timedelta:
    """A duration of a millisecond or more, the resolution of times, or 0 for none."""
    found = parse_duration(value)
    if timedelta(0) < found < MILLISECOND:
        msg = "it must be 0 for none, or at least 1 ms: times are in milliseconds"
        raise ValueError(msg)
    return found


def read_size(value: str | int) -> int:
    """Bytes from a whole number, or from one with a unit."""
    found = re.fullmatch(r"\s*([1-9][0-9]*)\s*(|k|m|g|kib|mib|gib)\s*", str(value).lower())
    if found is None:
        msg = "a size is a whole number of bytes above zero, or has one of the units KiB, MiB, GiB"
        raise ValueError(msg)
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2][:1]]


def read_ports(value: Any) -> range:
    """One port, or a range of them such as ``9464-9473``; 0 is any that is free."""
    found = re.fullmatch(r"([0-9]{1,5})(?:-([1-9][0-9]{0,4}))?", str(value))
    ports = range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)
    if not ports or ports[-1] > _LAST_PORT or (len(ports) > 1 and ports[0] == 0):
        msg = f"it must be a port from 0 to {_LAST_PORT}, or a range of ports that begins above 0"
        raise ValueError(msg)
    return ports


def read_umask(value: Any) -> int:
    """Octal digits, for files that others cannot write."""
    if not re.fullmatch(r"0[2367][2367]", read_text(value)):
        msg = "it must be 0 and two octal digits as text, and take the permission to write from all others"
        raise ValueError(msg)
    return int(value, 8)


def read_batch(value: Any) -> tuple[str, int]:
    """The name of a query and the number of a batch."""
    query, _, number = read_text(value).rpartition(":")
    if not (query and number.isdecimal()):
        msg = "it must be the name of a query and the number of a batch, such as bids:17"
        raise ValueError(msg)
    return query, int(number)
