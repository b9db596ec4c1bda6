"""End a run if a topic that it writes takes only smaller messages than when the run began.

Kafka's Java client keeps the batch size that was allowed when the run began. It splits a refused batch into
pieces of that size, so it sends the same batch again, without end and without an error. A transaction fails
at the first refused batch, which may be before the limits are read again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Self

from flowcore.background import PeriodicThread
from flowcore.errors import BrokerError, LoweredLimitError
from flowcore.kafka.topics import TopicLimits, topic_limits
from flowcore.planner.model import LiveQuery
from flowcore.settings import Settings
from flowcore.spark.context import output_servers

__all__ = ["LimitWatch"]

_INTERVAL_S = 30.0

_log = logging.getLogger(__name__)


class LimitWatch:
    """The limits of the topics that a run writes to; a context manager with a thread that reads them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._names: dict[str, set[str]] = {}
        """Topics by the address of their broker."""
        self._known: dict[tuple[str, str], TopicLimits] = {}
        """By broker and topic: topics of two brokers may have one name."""
        self._lowered: dict[tuple[str, str], int] = {}
        self._watching = PeriodicThread("limits", self._read, _INTERVAL_S)

    def __enter__(self) -> Self:
        self._watching.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._watching.__exit__(None, None, None)

    def begin(self, limits: Iterable[tuple[LiveQuery, Mapping[str, TopicLimits]]]) -> None:
        """Watch the topics of queries, dead letters included, with the limits by which they were compiled."""
        for query, known in limits:
            servers = output_servers(query, self._settings)
            self._known |= {(servers, name): each for name, each in known.items()}
            self._names.setdefault(servers, set()).update(known)

    def check(self) -> None:
        """Check that no limit was lowered.

        Raises:
            LoweredLimitError: A limit was lowered, so that messages may never be accepted.
        """
        for place, largest in self._lowered.items():
            msg = (
                f"topic {place[1]!r} takes messages of at most {largest} bytes, and took "
                f"{self._known[place].max_message_bytes} when the run began (max.message.bytes): larger "
                "batches would be sent again without end, so the run ends; nothing is lost: start it again, "
                "and it writes smaller ones"
            )
            raise LoweredLimitError(msg)

    def check_now(self) -> None:
        """Read the limits, and check them as `check` does, after a topic has refused a batch as too large.

        Raises:
            LoweredLimitError: A limit was lowered.
        """
        self._read()
        self.check()

    def _read(self) -> None:
        for servers, names in self._names.items():
            try:
                found = topic_limits(servers, names)
            except BrokerError:  # the queries themselves report it
                _log.debug("the limits of %s cannot be read", names, exc_info=True)
                continue
            self._lowered |= {
                (servers, name): limits.max_message_bytes
                for name, limits in found.items()
                if limits.max_message_bytes < self._known[servers, name].max_message_bytes
            }
