"""Exactly-once delivery: decide whether a slot writes a batch, has written it before, or must stop.

A *slot* is one part of a query's output, which one transactional producer writes. In the transaction with the
records of a batch, each slot writes one entry to its partition of the query's *ledger*, also if it has no
records. So the last entry of a slot says whether a batch continues the output, repeats it, or does not fit.

This module imports neither Kafka nor Spark. Times do not matter: batches are numbered, and a number is never
reused for other records.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import NoReturn, Self

from flowcore.errors import DeliveryError

__all__ = [
    "LedgerEntry",
    "LedgerTerms",
    "SlotBatch",
    "ledger_topic",
    "transactional_id",
    "transactional_prefix",
]

_DIGEST_BITS = 64


@dataclass(frozen=True, slots=True)
class LedgerTerms:
    """The terms of a ledger, which its checkpoint keeps.

    Attributes:
        slots: Number of slots. A record must go to the same slot whenever its batch is repeated.
        since: The first batch with entries. Earlier batches were delivered at least once, or by nobody.
        series: How often a person has let the ledger begin again, with a batch that it refused.
    """

    slots: int
    since: int
    series: int = 0

    @classmethod
    def choose(
        cls, known: Self | None, next_batch: int, slots: int, repeat_batch: int | None = None, series: int = 0
    ) -> Self:
        """The terms of a start. A repeated batch always begins another series, so that no entry refuses it.

        Args:
            known: Those of the last start, None if that did not deliver exactly once.
            next_batch: The batch that is run first.
            slots: The number of slots if there are no terms yet.
            repeat_batch: The batch that is written whatever the ledger says; it may have been written before.
            series: The largest one in the ledger, which has a larger one than ``known`` if the checkpoint is
                an older copy; or that of the last terms, if a later start did not deliver exactly once.
        """
        if repeat_batch == next_batch:
            last = max(series, known.series if known else 0)
            return cls(known.slots if known else slots, next_batch, last + 1)
        return known or cls(slots, next_batch, series)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The entry of one slot for one batch in the ledger.

    Attributes:
        checkpoint: The id of the checkpoint that numbers the batch.
        slots: Number of slots when it was written; ``series`` is also that of the terms then.
        records: Number of records.
        digest: Sum of the hashes of the records' ids, modulo 2**64: the order of records does not change it.
    """

    checkpoint: str
    series: int
    batch: int
    slots: int
    records: int
    digest: int

    def encode(self) -> bytes:
        """The entry as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Read an entry.

        Raises:
            DeliveryError: The text is not an entry.
        """
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError) as error:
            msg = (
                f"the ledger has the entry {content[:200]!r}, which flowcore did not write: whether a batch "
                "was written is unknown, so nothing is; let nothing else write to this topic"
            )
            raise DeliveryError(msg) from error


@dataclass(frozen=True, slots=True)
class SlotBatch:
    """One batch of one slot, before it is written.

    Attributes:
        checkpoint: The id of the query's checkpoint.
        slot: Number of the slot, from 0.
    """

    flow: str
    query: str
    checkpoint: str
    batch: int
    slot: int
    terms: LedgerTerms

    def read_last(self, content: bytes | None) -> LedgerEntry | None:
        """The last entry of a slot's ledger; None if there is none, or if the ledger begins again.

        Raises:
            DeliveryError: The content is not an entry.
        """
        try:
            return None if content is None else LedgerEntry.decode(content)
        except DeliveryError:
            if self.terms.series and self.batch == self.terms.since:
                return None
            self._refuse(
                f"has the entry {content!r:.200}", "flowcore did not write it, so records may repeat"
            )

    def find_written(self, last: LedgerEntry | None) -> LedgerEntry | None:
        """The entry of this batch if the slot has written it before; ``last`` is the last one in its ledger.

        Raises:
            DeliveryError: The batch does not continue the ledger.
        """
        terms = self.terms
        place = (
            (last.series, last.batch) if last is not None and last.checkpoint == self.checkpoint else (-1,)
        )
        if last is None or place < (terms.series, terms.since):
            if self.batch != terms.since:
                found = "no entry" if last is None else f"batch {last.batch} of checkpoint {last.checkpoint}"
                self._refuse(f"has {found}", "records may be missing")
            self._require_first(last)
            return None
        if last.slots != terms.slots:
            was = f"was written with {last.slots} slots, and now there are {terms.slots}"
            self._refuse(was, "records would be written twice")
        if last.batch > self.batch:
            self._refuse(f"has batch {last.batch}: the checkpoint is older", "records would be written twice")
        if last.batch < self.batch - 1:
            self._refuse(f"ends with batch {last.batch}", "records may be missing")
        return last if last.batch == self.batch else None

    def _require_first(self, last: LedgerEntry | None) -> None:
        """Check that no other checkpoint has written, unless a person lets the ledger begin again."""
        if last is not None and last.checkpoint != self.checkpoint and not self.terms.series:
            self._refuse(
                f"has batch {last.batch} of checkpoint {last.checkpoint}",
                "this checkpoint is new, as if the state folder were gone, and the records that were written "
                "would be written again. So bring the folder of that checkpoint back, or use another name "
                "for the flow",
            )

    def entry(self, records: int, digest: int) -> LedgerEntry:
        """The entry of this batch; ``digest`` is any integer that equals the digest modulo 2**64."""
        digest %= 1 << _DIGEST_BITS
        terms = self.terms
        return LedgerEntry(self.checkpoint, terms.series, self.batch, terms.slots, records, digest)

    def require_same(self, written: LedgerEntry, repeated: LedgerEntry) -> None:
        """Check that a repeated batch has the records of the first time.

        Raises:
            DeliveryError: The batch has other records.
        """
        if written != repeated:
            found = "other records" if written.records == repeated.records else f"{repeated.records} records"
            self._refuse(
                f"has {written.records} records of this batch, and its repetition has {found}",
                "some would be written twice or not at all. A function of the flow is not deterministic, or "
                "the flow has changed before the batch was complete: go back to the flow that began it",
            )

    def _refuse(self, found: str, consequence: str) -> NoReturn:
        ledger = f"{ledger_topic(self.flow, self.query)}[{self.slot}]"
        msg = (
            f"query {self.query!r} of flow {self.flow!r} cannot write batch {self.batch} of checkpoint "
            f"{self.checkpoint} exactly once: its ledger {ledger} {found}: {consequence}. To continue "
            "nevertheless, and write this batch with the repeats that it may have, start the flow with --set "
            f"delivery.repeat-batch={self.query}:{self.batch}"
        )
        raise DeliveryError(msg)


def ledger_topic(flow: str, query: str) -> str:
    """The topic of the ledger of a query; it has a partition for each slot."""
    return f"{flow}.{query}.ledger"


def transactional_id(flow: str, query: str, slot: int) -> str:
    """The id by which Kafka lets only the newest producer of a slot commit."""
    return f"{transactional_prefix(flow, query)}{slot}"


def transactional_prefix(flow: str, query: str) -> str:
    """The prefix of the ids of all slots of a query."""
    return f"{flow}.{query}."
