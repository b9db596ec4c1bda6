"""The sink of a query that delivers exactly once: slots write each batch, each in one transaction.

A record with a key goes to the slot of its key; without a key it goes to the slot of its source partition or
operator. So a key's records stay in the order in which one task emits them, and a repeated batch has the same
records in each slot. `flowcore.delivery` decides what a slot writes.

All slots of a repeated batch compare their records with the ledger before any of them writes. Otherwise a
changed flow could complete a batch in one slot that another slot refuses, and no flow could continue.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import partial

from pyspark.sql import DataFrame, Row

from flowcore.errors import DeliveryError
from flowcore.failpoints import failpoint
from flowcore.kafka.transactions import TransactionalWriter
from flowcore.spark.topics.slot_task import RESULT_TYPES, write_slot

__all__ = ["TransactionalSink"]

_SLOT = "_slot"
_ID = "CASE WHEN get(headers, 0).key = 'flowcore-id' THEN CAST(get(headers, 0).value AS STRING) END"
"""The id of a record, in its first header."""
_ORIGIN = f"split_part({_ID}, ':', 3)"
"""The source partition of a record, or the operator that made it."""


class TransactionalSink:
    """Writes the batches of a query, for `CalledSink`.

    Args:
        repeated: The batch that may have been written before, if any.

    Attributes:
        written: Number of messages in committed transactions, by topic.
    """

    def __init__(self, writer: TransactionalWriter, repeated: int | None = None) -> None:
        self._writer = writer
        self._repeated = repeated
        self.written: Counter[str] = Counter()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Write one batch. Its rows are computed once: state may not be updated twice.

        Raises:
            DeliveryError: The batch does not continue the ledger, or is repeated with other records.
        """
        failpoint("offsets-logged")
        rows = self._divide(frame)
        if batch == self._repeated:
            rows = rows.persist()
        try:
            if batch == self._repeated:
                self._call_slots(rows, batch, compares=True)
            for each in self._call_slots(rows, batch):
                self.written.update(json.loads(each.written))
        finally:
            rows.unpersist()
        failpoint("batch-written")

    def _call_slots(self, rows: DataFrame, batch: int, *, compares: bool = False) -> list[Row]:
        # With a function of this module, workers would import all of flowcore.spark.
        task = partial(write_slot, writer=self._writer, batch=batch, compares=compares)
        results = rows.mapInArrow(task, RESULT_TYPES).collect()
        if refused := [each.refusal for each in results if each.refusal]:
            raise DeliveryError(refused[0])
        return results

    def _divide(self, frame: DataFrame) -> DataFrame:
        """Rows as the task of a slot reads them; each slot is a partition."""
        slots = self._writer.terms.slots
        partition = "partition" if "partition" in frame.columns else "CAST(NULL AS INT)"
        is_marker = f"{partition} IS NOT NULL AND {_ID} IS NULL"
        unkeyed = f"coalesce(try_cast({_ORIGIN} AS BIGINT), xxhash64(topic, {_ORIGIN}))"
        # The rows without a key that have a partition are those of one group, in their order.
        unkeyed = f"CASE WHEN {partition} IS NULL THEN {unkeyed} ELSE xxhash64(topic, {partition}) END"
        place = f"CASE WHEN key IS NULL THEN {unkeyed} ELSE xxhash64(topic, key) END"
        record = f"CASE WHEN {_ID} IS NULL THEN xxhash64(topic, key, value) ELSE xxhash64(topic, {_ID}) END"
        return (
            frame.selectExpr(
                "topic", "CAST(key AS BINARY) AS key", "CAST(value AS BINARY) AS value", "headers",
                f"{partition} AS partition",
                f"CAST(pmod({place}, {slots}) AS INT) AS {_SLOT}",
                f"CASE WHEN {is_marker} THEN NULL ELSE {record} END AS hash",
            )
            .repartitionById(slots, _SLOT)
            .drop(_SLOT)
        )  # fmt: skip
