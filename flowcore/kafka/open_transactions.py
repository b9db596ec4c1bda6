"""The transactions of queries that are open on a broker: readers of committed records wait for their end."""

from __future__ import annotations

from collections.abc import Iterable

from flowcore.delivery import transactional_prefix
from flowcore.kafka.topics import connected

__all__ = ["open_transactions"]

_OPEN_STATES = ["Ongoing", "PrepareCommit", "PrepareAbort"]


def open_transactions(
    bootstrap_servers: str, flow: str, queries: Iterable[str], timeout_s: float
) -> dict[str, list[int]]:
    """When the open transactions of each query began, in milliseconds since the epoch, by the broker's clock.

    Raises:
        BrokerError: The broker has not answered within the time.
    """
    prefixes = {query: transactional_prefix(flow, query) for query in queries}
    with connected(bootstrap_servers, timeout_s) as client:
        listed = client.list_transactions(state_filters=_OPEN_STATES)
        ids = [each.transactional_id for some in listed.values() for each in some]
        ours = {
            name: query
            for name in ids
            for query, prefix in prefixes.items()
            if name.startswith(prefix) and name.removeprefix(prefix).isdecimal()
        }
        found: dict[str, list[int]] = {query: [] for query in prefixes}
        # One that has ended in the meantime keeps its id, without a start.
        for name, transaction in client.describe_transactions(ours).items():
            if transaction.transaction_start_time_ms > 0:
                found[ours[name]].append(transaction.transaction_start_time_ms)
    return found
