"""Fingerprints: has a value been changed since?

Made of values that cannot be changed, compared with ``==``. A NaN is equal to itself, and 1 is neither
True nor 1.0.
"""

from __future__ import annotations

import pickle
from typing import Any

__all__ = ["changed_column", "fingerprint"]


def fingerprint(value: Any) -> Any:
    """What a value is now.

    >>> record = {"tags": ["a"]}
    >>> before = fingerprint(record)
    >>> record["tags"].append("b")
    >>> before == fingerprint(record), changed_column(before, fingerprint(record))
    (False, 'tags')
    """
    kind = type(value)
    if kind is dict:
        return (kind, tuple((key, fingerprint(each)) for key, each in value.items()))
    if kind is list or kind is tuple:
        return (kind, tuple(map(fingerprint, value)))
    if kind is float or kind is complex:
        return (kind, repr(value))
    try:
        hash(value)
    except TypeError:
        return (kind, pickle.dumps(value, 5))
    return (kind, value)


def changed_column(before: Any, after: Any) -> str | None:
    """The first column in which two fingerprints of a record differ, None if they are of no records."""
    if before[0] is not dict or after[0] is not dict:
        return None
    old, new = dict(before[1]), dict(after[1])
    return next((str(key) for key in {**old, **new} if old.get(key) != new.get(key)), None)
