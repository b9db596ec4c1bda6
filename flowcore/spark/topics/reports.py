"""Spark's reports of the batches of a query, each read once, and what they say of bad messages."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from flowcore.api.operators import Read

__all__ = ["bad_observation", "batches_after"]


def bad_observation(node: Read) -> str:
    """The name under which a query observes how many bad messages a batch has of a source."""
    return f"bad:{node.name}"


def batches_after(number: int, running: StreamingQuery) -> list[dict[str, Any]]:
    """Spark's reports of the batches after a batch, oldest first."""
    # PySpark's own property reads each of the last hundred reports again.
    recent = running._jsq.recentProgress()  # noqa: SLF001
    found = []
    for each in reversed(range(len(recent))):
        if recent[each].batchId() <= number:
            break
        found.append(json.loads(recent[each].json()))
    return found[::-1]
