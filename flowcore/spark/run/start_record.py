"""The plan file of a query as each of its starts in a run writes it."""

from __future__ import annotations

from flowcore.kafka.security import task_login
from flowcore.kafka.transactions import last_series
from flowcore.planner.model import LiveQuery
from flowcore.spark.checkpoint import plan_file
from flowcore.spark.checkpoint.identity import CheckpointIdentity
from flowcore.spark.checkpoint.offset_log import next_batch
from flowcore.spark.context import Context, output_servers
from flowcore.spark.run.running_query import PreparedQuery

__all__ = ["StartRecord"]


class StartRecord:
    """Writes the plan file of one query at each start in a run.

    Attributes:
        reads_again: It reads records that a real-time batch may have processed, which did not end. Until it
            has caught up, they are processed with the results that it joined then, in further runs too.
    """

    def __init__(self, query: LiveQuery, context: Context) -> None:
        self._context = context
        self._checkpoint = plan_file.checkpoint_folder(query, context.flow, context.settings)
        named, batch = context.settings.repeat_batch or ("", None)
        self._repeat_batch = batch if named == query.name else None
        before = plan_file.read_plan_file(self._checkpoint)
        self.reads_again = before is not None and before.mode == "realtime"

    def write(self, prepared: PreparedQuery) -> CheckpointIdentity:
        """Write the plan file of a start. Only the first one of a run may begin the ledger anew.

        Raises:
            BrokerError: The ledger is to begin anew, and cannot be read.
        """
        query, settings = prepared.query, self._context.settings
        series = 0
        if query.exactly_once and self._repeat_batch == next_batch(self._checkpoint):
            login = task_login(output_servers(query, settings))
            series = last_series(login, self._context.flow, query.name)
        identity = plan_file.write_plan_file(
            query, self._context.flow, self._checkpoint, prepared.types,
            topics=prepared.side_channels.topics, lags=prepared.side_channels.lags, schemas=prepared.schemas,
            bounded=prepared.joined.versions,
            mode="realtime" if self.reads_again and prepared.catching_up else "",
            repeat_batch=self._repeat_batch, ledger_series=series,
            slots=settings.shuffle_partitions if query.exactly_once else None,
        )  # fmt: skip
        self._repeat_batch = None
        return identity
