"""Channels of a partition: each sender that writes control elements to it is one.

Anyone who may write to a topic may forge senders. So only the senders that a source declares count. Without a
declaration, the first senders of each partition count, in the order of their elements. A sender that counts
is never replaced by another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

__all__ = ["MOST_SENDERS", "channel_name", "find_ignored", "partition_of"]

MOST_SENDERS = 64
"""The most senders of a partition that count, if the source does not declare them."""


def channel_name(partition: str, sender: str = "") -> str:
    """The name of a channel; without a sender, that of its partition."""
    return f"{partition}/{sender}" if sender else partition


def partition_of(channel: str) -> str:
    """The partition of a channel."""
    return channel.split("/", 1)[0]


def find_ignored(
    new: Iterable[str], known: Iterable[str], declared: Collection[str] | None = None
) -> frozenset[str]:
    """The new channels that do not count.

    Args:
        new: Channels that are not known, in the order of their elements.
        known: The channels that count already.
        declared: The senders that the source declares; None if it declares none.

    >>> sorted(find_ignored(["0/a", "1/b"], [], declared=["b"]))
    ['0/a']
    >>> sorted(find_ignored(["0/new", "1/new", "0"], [f"0/{number}" for number in range(MOST_SENDERS)]))
    ['0/new']
    """
    if declared is not None:
        return frozenset(name for name in new if name.partition("/")[2] not in declared)
    counts = Counter(partition_of(name) for name in known if "/" in name)
    ignored = set()
    for name in new:
        partition = partition_of(name)
        if name == partition:
            continue
        if counts[partition] < MOST_SENDERS:
            counts[partition] += 1
        else:
            ignored.add(name)
    return frozenset(ignored)
