"""Failures of a query after which it is started again at once, three times without a committed batch.

Such are a process or a transaction that was slow, another producer that ended a transaction, and latency
markers that have expired before the query read them, as in a long catch-up.
"""

from __future__ import annotations

from flowcore.planner.model import LiveQuery
from flowcore.spark.checkpoint.offset_log import next_batch
from flowcore.spark.checkpoint.plan_file import checkpoint_folder
from flowcore.spark.context import Context
from flowcore.spark.errors import find_mishap, has_lost_records
from flowcore.spark.run.live_topics import skip_lost_markers
from flowcore.spark.run.patience import Patience
from flowcore.spark.run.running_query import RunningQuery

__all__ = ["Mishaps"]


class Mishaps:
    """The mishaps of one query.

    Args:
        has_markers: Whether it reads the companion topics of its sources.
    """

    def __init__(self, query: LiveQuery, context: Context, patience: Patience, *, has_markers: bool) -> None:
        self._query, self._context, self._patience = query, context, patience
        self._has_markers = has_markers
        self._checkpoint = checkpoint_folder(query, context.flow, context.settings)
        self._skipped: RunningQuery | None = None

    def allows(self, ended: RunningQuery) -> bool:
        """Whether a query that has ended failed by a mishap, and may be started again."""
        error = ended.error
        is_mishap = error is not None and (find_mishap(error) is not None or has_lost_records(error))
        return is_mishap and self._patience.allows(ended, next_batch(self._checkpoint))

    def settle(self, failed: RunningQuery) -> str:
        """Prepare another start after a mishap, and return what has happened; again if that start fails.

        Raises:
            Exception: The error of the query, if it has lost records and not markers.
            BrokerError: A broker cannot be reached.
        """
        error = failed.error
        mishap = find_mishap(error)
        if error is not None and mishap is None and self._skipped is not failed:
            if not skip_lost_markers(self._query, self._context, has_markers=self._has_markers):
                raise error
            self._skipped = failed
        self._patience.add(failed, next_batch(self._checkpoint))
        return mishap or "latency markers have expired that it had not read"
