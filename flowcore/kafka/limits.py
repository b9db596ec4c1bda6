"""Which messages would a topic refuse, whatever is in them?

Asked once, when a query starts: one message that is refused fails the query, and would fail it again
after each restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flowcore.errors import BrokerError
from flowcore.kafka.admin import ConfigResource, KafkaError, connected

__all__ = ["TopicLimits", "topic_limits"]

_TIMEOUT_S = 5.0
_LARGEST, _CLEANUP = "max.message.bytes", "cleanup.policy"


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """What a topic takes.

    Attributes:
        max_message_bytes: Of a batch, its head included, so of a message less a few tens of bytes.
        needs_key: It is compacted, and a message without a key is refused.
    """

    max_message_bytes: int
    needs_key: bool


def topic_limits(bootstrap_servers: str, topics: Iterable[str]) -> dict[str, TopicLimits]:
    """What topics take, by name.

    Raises:
        BrokerError: The broker cannot be reached, or does not know a topic.
    """
    asked = [ConfigResource("topic", name, {_LARGEST: None, _CLEANUP: None}) for name in set(topics)]
    if not asked:
        return {}
    try:
        with connected(bootstrap_servers, _TIMEOUT_S) as client:
            found = client.describe_configs(asked, config_filter="all")["topic"]
    except KafkaError as error:
        msg = (
            f"broker {bootstrap_servers} does not say which messages {', '.join(c.name for c in asked)} take "
            f"({error}): one that is too large would stop the query for ever; see to the broker"
        )
        raise BrokerError(msg) from error
    return {
        name: TopicLimits(
            max_message_bytes=int(configs[_LARGEST]["value"]),
            needs_key="compact" in configs[_CLEANUP]["value"],
        )
        for name, configs in found.items()
    }
