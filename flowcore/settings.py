"""Settings: everything about a run that is not part of the flow.

Each has one key, written as users of Flink and Spark would expect it. They are read, later ones
winning, from defaults, environment variables (``kafka.bootstrap.servers`` is
``FLOWCORE_KAFKA_BOOTSTRAP_SERVERS``) and ``--set key=value``. Keys that begin with ``spark.`` go to
Spark as they are: a cluster is chosen by ``spark.master``, never in code.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from flowcore.errors import SettingsError

__all__ = ["Settings", "parse_duration"]

_UNITS_MS = {"ms": 1, "s": 1000, "sec": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration(text: str | float | timedelta) -> timedelta:
    """Read ``"500 ms"``, ``"10s"``, ``"5 min"``, ``"1h"``, ``"2d"``; a bare ``0`` is zero.

    Raises:
        ValueError: The text is not a number with a unit, or is negative.
    """
    if isinstance(text, timedelta):
        if text < timedelta(0):
            msg = "a duration cannot be negative"
            raise ValueError(msg)
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(text).lower())
    if match and float(match[1]) == 0 and not match[2]:
        return timedelta(0)
    if not match or match[2] not in _UNITS_MS:
        msg = f"a duration is a number with one of the units {', '.join(_UNITS_MS)}, for instance '10 s'"
        raise ValueError(msg)
    return timedelta(milliseconds=float(match[1]) * _UNITS_MS[match[2]])


def _positive(text: str | int) -> int:
    number = int(text)
    if number <= 0:
        msg = "it must be a whole number above zero"
        raise ValueError(msg)
    return number


def _flag(text: str | bool) -> bool:
    if str(text).lower() not in ("true", "false"):
        msg = "it must be true or false"
        raise ValueError(msg)
    return str(text).lower() == "true"


def _setting(key: str, default: Any, read: Callable[[Any], Any], doc: str) -> Any:
    return field(default=default, metadata={"key": key, "read": read, "doc": doc})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one run, typed; `Settings.of` reads them from their keys."""

    bootstrap_servers: str | None = _setting(
        "kafka.bootstrap.servers", None, str, "host:port[,host:port] of the Kafka broker"
    )
    data_dir: Path = _setting(
        "data.dir", Path(), Path, "folder that relative source and sink paths start from"
    )
    state_dir: Path = _setting(
        "state.dir", Path(".flowcore"), Path, "folder of bounded results, checkpoints and locks"
    )
    trigger_interval: timedelta = _setting(
        "execution.trigger-interval", timedelta(0), parse_duration,
        "micro-batch: time from the start of one batch to the next, 0 for at once",
    )  # fmt: skip
    realtime_batch: timedelta = _setting(
        "execution.realtime.batch-duration", timedelta(minutes=5), parse_duration,
        "realtime: time between two checkpoints, at least 5 s; it is not the latency",
    )  # fmt: skip
    max_batch_records: int = _setting(
        "execution.max-records-per-batch", 5_000_000, _positive,
        "micro-batch and slice: most records of a source taken into one batch",
    )  # fmt: skip
    shuffle_partitions: int = _setting(
        "execution.shuffle-partitions", 2, _positive,
        "partitions of a live query's state, fixed when its checkpoint is born",
    )  # fmt: skip
    short_lived: bool = _setting(
        "execution.short-lived", False, _flag,
        "Spark's JVM compiles quickly instead of well: right for tests, wrong for a stream",
    )  # fmt: skip
    spark: Mapping[str, str] = field(default_factory=dict)
    """Keys that begin with ``spark.``, as given."""

    @classmethod
    def of(cls, *mappings: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Self:
        """Settings from the environment and then from mappings of key to value, later ones winning.

        Raises:
            SettingsError: A key does not exist (the message suggests the nearest), or a value is not
                of its kind.

        >>> Settings.of({"execution.trigger-interval": "2 s"}, environment={}).trigger_interval.seconds
        2
        """
        found: dict[str, Any] = {}
        spark: dict[str, str] = {}
        environment = os.environ if environment is None else environment
        names = {key: f"FLOWCORE_{re.sub('[.-]', '_', key).upper()}" for key in keys()}
        given = {key: environment[name] for key, name in names.items() if name in environment}
        for mapping in (given, *mappings):
            for key, value in mapping.items():
                if key.startswith("spark."):
                    spark[key] = str(value)
                else:
                    found.update(_read(key, value))
        settings = replace(cls(), **found, spark=spark)
        if settings.realtime_batch < timedelta(seconds=5):
            msg = (
                f"execution.realtime.batch-duration={settings.realtime_batch.total_seconds():g} s is under "
                "Spark's smallest, 5 s: the query would be refused; it is the time between two checkpoints, "
                "not the latency, so pass '5 min'"
            )
            raise SettingsError(msg)
        return settings


def keys() -> dict[str, str]:
    """Every key with what it means."""
    return {f.metadata["key"]: f.metadata["doc"] for f in fields(Settings) if "key" in f.metadata}


def _read(key: str, value: Any) -> dict[str, Any]:
    for setting in fields(Settings):
        if setting.metadata.get("key") == key:
            try:
                return {setting.name: setting.metadata["read"](value)}
            except (ValueError, TypeError, OverflowError) as error:
                msg = f"setting {key}={value!r} cannot be used: {error} ({setting.metadata['doc']})"
                raise SettingsError(msg) from error
    near = difflib.get_close_matches(key, keys(), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(keys())}, and spark.*"
    msg = f"setting {key}={value!r} does not exist: it would have no effect; {hint}"
    raise SettingsError(msg)
