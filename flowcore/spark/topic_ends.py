"""Topic ends: where do the topics of a plan's live queries end, now and before these were started?"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from flowcore.errors import BrokerError
from flowcore.graph.operators import Read, Write, topic_of
from flowcore.kafka.topics import ends_of
from flowcore.metrics.tally import Offsets
from flowcore.planner.plan import Plan
from flowcore.spark.context import Context, broker_of

__all__ = ["TopicEnds"]

_FIRST_ANSWER_S, _ANSWER_S = 10.0, 2.0
_AWAY_S = 5.0


class TopicEnds:
    """Where the topics of a live stage end, dead letters' included.

    Attributes:
        ends: As the broker answered last.

    Raises:
        BrokerError: A broker cannot be reached.
    """

    def __init__(self, plan: Plan, context: Context) -> None:
        self._brokers: dict[str, set[str]] = {}
        for query in plan.live.queries if plan.live else ():
            nodes: list[Read | Write] = [*query.sources, *query.sinks]
            for node in nodes:
                if topic := topic_of(node):
                    names = self._brokers.setdefault(broker_of(topic, context.settings), set())
                    names |= {topic.name, *([topic.dead_letter] if node in query.dead_letters else [])}
        self.ends: Offsets = self._ask(_FIRST_ANSWER_S)
        self._before = self.ends
        self._ask_again_s = 0.0

    def ask(self) -> None:
        """Ask the brokers; ends stand still while one does not answer."""
        if time.monotonic() < self._ask_again_s:
            return
        try:
            self.ends = self._ask(_ANSWER_S)
        except BrokerError:
            # A run that is stopped while its broker is away must not wait for it at each look.
            self._ask_again_s = time.monotonic() + _AWAY_S

    def written(self, topics: Iterable[str]) -> int:
        """Records that came into topics since the start."""
        return sum(_sum(self.ends, name) - _sum(self._before, name) for name in topics)

    def _ask(self, timeout_s: float) -> Offsets:
        found: dict[str, Mapping[int, int]] = {}
        for servers, names in self._brokers.items():
            found |= ends_of(servers, sorted(names), timeout_s)
        return found


def _sum(ends: Offsets, topic: str) -> int:
    return sum(ends.get(topic, {}).values())
