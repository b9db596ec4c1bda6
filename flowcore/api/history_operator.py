"""The operator that lets a topic begin with a history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from flowcore.api.connector_operators import Read
from flowcore.api.connectors import KafkaTopic
from flowcore.api.decisions import Obstacle
from flowcore.api.node import Operator

__all__ = ["WithHistory"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WithHistory(Operator):
    """The records of a bounded stream, sorted by event time if the topic has it, and then those of a topic.

    Its inputs are the source of the topic, and the bounded stream.

    Attributes:
        at_ms: The event time at which the history ends and the topic begins, in milliseconds; None if the
            topic's start position is the seam.
    """

    at_ms: int | None = None

    @property
    def live(self) -> Read:
        """The source of the topic."""
        source = self.inputs[0]
        assert isinstance(source, Read)  # noqa: S101 - `build_history` checks it
        return source

    @property
    def live_topic(self) -> KafkaTopic:
        """The topic."""
        topic = self.live.topic
        assert topic is not None  # noqa: S101 - `build_history` checks it
        return topic

    @property
    def history(self) -> Operator:
        """The bounded stream."""
        return self.inputs[1]

    @property
    def seam(self) -> str:
        """Where the history ends and the topic begins, in words."""
        if self.at_ms is None:
            return f"the start position of {self.live.name}"
        return f"event time {datetime.fromtimestamp(self.at_ms / 1000, UTC).isoformat()}"

    def describe(self) -> str:
        return f"{self.history.name}, then {self.live.name} from {self.seam}"

    def types(self) -> Mapping[str, str]:
        return self.passed_types(self.columns)

    def realtime_obstacles(self) -> Iterator[Obstacle]:
        yield Obstacle(f"{self.name} reads a history in batches before {self.live.name}")
