"""Deletion of topics, until the broker no longer has them."""

from __future__ import annotations

import time
from collections.abc import Collection

from confluent_kafka.admin import AdminClient

from flowcore.errors import RunError
from flowcore.kafka.topics import partition_counts

__all__ = ["delete_other_topics", "delete_topics"]

_DELETED_S = 30.0


def delete_topics(servers: str, names: Collection[str]) -> None:
    """Delete these topics, which exist; return when they are gone.

    Raises:
        RunError: They are still there after half a minute.
    """
    if not names:
        return
    client = AdminClient({"bootstrap.servers": servers})
    for deleted in client.delete_topics(sorted(names)).values():
        deleted.result(_DELETED_S)
    end = time.monotonic() + _DELETED_S
    while any(count is not None for count in partition_counts(servers, names).values()):
        if time.monotonic() > end:
            msg = f"topics {', '.join(names)} are still there {_DELETED_S:.0f} s after their deletion"
            raise RunError(msg)
        time.sleep(0.1)


def delete_other_topics(servers: str, kept: Collection[str]) -> None:
    """Delete all topics but these, and but those of the broker itself, such as ``__consumer_offsets``.

    Raises:
        RunError: They are still there after half a minute.
    """
    found = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=_DELETED_S).topics
    delete_topics(servers, {name for name in found if name not in kept and not name.startswith("__")})
