"""What a trial has sent, by what must become of it."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field

from tests.benchmarks._faults.sales import Sale

__all__ = ["Sent", "digest_of"]


@dataclass(slots=True)
class Sent:
    """What was sent to the source.

    Attributes:
        sales: Acknowledged good sales with their partitions, in order.
        refused: Ids of sales whose transaction was aborted or whose sending failed.
        bad: Digests of messages that must be dead letters.
        late: Ids of sales that are late for their window.
        lost: Ids of sales that the topic removed before they were read, and whose loss flowcore has listed.
        uncounted: Ids of sales whose windows were removed with their checkpoint.
    """

    sales: list[tuple[int, Sale]] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)
    bad: Counter[bytes] = field(default_factory=Counter)
    late: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    uncounted: set[int] = field(default_factory=set)

    @property
    def unique(self) -> list[tuple[int, Sale]]:
        """The good sales without repeats of a producer."""
        return [*{sale["id"]: (partition, sale) for partition, sale in self.sales}.values()]


def digest_of(message: bytes | None) -> bytes:
    """What a dead letter is found by."""
    return hashlib.blake2b(message or b"", digest_size=16).digest()
