"""Bundles: how many elements does an operator take at a time?

An operator that is dear to call is called once a bundle, with the values of each key together. A bundle is
finished after a number of elements, whatever their keys, and at the end of the input.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from flowcore.errors import ConfigurationError, SerializationError
from flowcore.flush.plain import check_value, key_of, written_key

__all__ = ["FORMAT", "VERSION", "Bundle", "CountBundle", "Finished", "add", "finish", "restore", "snapshot"]

FORMAT = "flowcore.flush.bundle"
VERSION = 1

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

Finished = Mapping[K, list[V]]
"""The values of each key of a finished bundle, in order of arrival; empty if none has been finished."""


@dataclass(frozen=True, slots=True)
class CountBundle:
    """Bundles of a number of elements.

    Args:
        count: Elements that make a bundle, > 0.

    Raises:
        ConfigurationError: The count is not positive.
    """

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            msg = f"count={self.count} is not positive: no bundle would ever be finished; pass count > 0"
            raise ConfigurationError(msg)


@dataclass(slots=True)
class Bundle(Generic[K, V]):
    """The bundle that is being filled. The functions of this module change it in place.

    Attributes:
        values: The values of each key, in order of arrival.
        elements: How many values there are.
        finished: How many bundles have been finished before it.
    """

    values: dict[K, list[V]] = field(default_factory=dict)
    elements: int = 0
    finished: int = 0


def add(config: CountBundle, bundle: Bundle[K, V], key: K, value: V) -> Finished[K, V]:
    """Take one element; the last one of a bundle finishes it.

    >>> pair, bundle = CountBundle(2), Bundle()
    >>> add(pair, bundle, "a", 1)
    {}
    >>> add(pair, bundle, "a", 2)
    {'a': [1, 2]}
    """
    bundle.values.setdefault(key, []).append(value)
    bundle.elements += 1
    return finish(bundle) if bundle.elements >= config.count else {}


def finish(bundle: Bundle[K, V]) -> Finished[K, V]:
    """Finish the bundle as it is, as at the end of the input; an empty one does not count."""
    values = bundle.values
    if values:
        bundle.values, bundle.elements = {}, 0
        bundle.finished += 1
        return values
    return {}


def snapshot(bundle: Bundle[K, V]) -> dict[str, Any]:
    """Write a bundle down as data that JSON can hold.

    Raises:
        SerializationError: A key or a value is not plain.
    """
    values = [[written_key(key), check_value(values)] for key, values in bundle.values.items()]
    return {"format": FORMAT, "version": VERSION, "values": values, "finished": bundle.finished}


def restore(written: Mapping[str, Any]) -> Bundle[Any, Any]:
    """The bundle that was written so.

    Raises:
        SerializationError: It is no snapshot of a bundle, or one of a later version.
    """
    match written:
        case {"format": str(name), "version": 1, "values": list(rows), "finished": int(finished)} if (
            name == FORMAT
        ):
            values = {key_of(key): list(of_key) for key, of_key in rows}
            return Bundle(values, sum(map(len, values.values())), finished)
        case _:
            msg = (
                f"a snapshot of format {written.get('format')!r} and version {written.get('version')!r} is "
                f"not one of {FORMAT!r} and version {VERSION}: elements in it would be lost; restore it "
                f"with the flowcore that wrote it"
            )
            raise SerializationError(msg)
