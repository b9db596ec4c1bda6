"""Spark's reports of the batches of a query, each read once."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["batches_after"]


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
