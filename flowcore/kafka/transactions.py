"""Transactional writing: the records of one slot and batch, with their ledger entry, in one transaction.

A new producer of a slot first ends the transaction of the producer before it: Kafka aborts it, or completes
it if its commit had begun, and lets the earlier producer write no more. Then the ledger shows whether the
batch was committed, so no commit stays in doubt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from flowcore.delivery import LedgerEntry, LedgerTerms, SlotBatch, ledger_topic, transactional_id
from flowcore.errors import BrokerAccessError, BrokerError, DeliveryError, UnreachableBrokerError
from flowcore.failpoints import failpoint
from flowcore.kafka.refusals import GUIDE

__all__ = [
    "EXPIRED", "FENCED", "LEDGER_CONFIGS", "Message", "MessageBatch", "SlotResult", "TransactionalWriter",
    "last_series",
]  # fmt: skip

EXPIRED = "its transaction took longer than delivery.transaction-timeout, and Kafka has aborted it"
"""Part of the error of a commit that came too late, as after a pause of the machine."""

FENCED = "another producer has begun in its place"
"""Part of the error of a transaction that another producer has ended."""

LEDGER_CONFIGS = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20)}
"""A ledger keeps the last entry of each slot for ever. Kafka compacts full segments, by default of 1 GiB."""

_START_S = 120.0
_STEP_S = 3.0
"""Of a longer wait: no signal interrupts a call of librdkafka."""
_ABORT_S = 10.0
_READ_S = 60.0
_FULL_S = 0.1
_FIRST_STEP = 16
"""How many offsets before its end a ledger is first searched: markers and aborted entries have some."""

_AWAY = {
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - librdkafka's names
    KafkaError._TIMED_OUT,  # noqa: SLF001
    KafkaError._TRANSPORT,  # noqa: SLF001
    KafkaError._MSG_TIMED_OUT,  # noqa: SLF001
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_LEADER_FOR_PARTITION,
}

_FENCED = {
    KafkaError._FENCED,  # noqa: SLF001
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
}

_REFUSED = {
    KafkaError._AUTHENTICATION,  # noqa: SLF001
    KafkaError._SSL,  # noqa: SLF001
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

_T = TypeVar("_T")
Headers = list[tuple[str, str | bytes | None]]
Message = tuple[str, bytes | None, bytes | None, Headers | None, int | None]
"""Topic, key, value, headers and partition (None for the one of its key)."""


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Some messages of a slot.

    Attributes:
        records: How many of them count in the ledger; latency markers do not.
        digest: The sum of the hashes of their ids.
    """

    messages: Iterable[Message]
    records: int
    digest: int


@dataclass(slots=True)
class SlotResult:
    """What a slot did with a batch.

    Attributes:
        written: Number of messages by topic; none if the batch was written before.
        refusal: Why the batch does not fit the ledger; nothing was written then.
    """

    written: dict[str, int] = field(default_factory=dict)
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class TransactionalWriter:
    """How the slots of a query write; it is sent to the tasks.

    Attributes:
        login: Address and security of the broker, for librdkafka.
        checkpoint: The id of the query's checkpoint.
        batch_bytes: The largest batch of messages that every topic accepts.
        message_bytes: The largest message.
        timeout_ms: Time in which a transaction must be committed. After a kill, readers wait this long if
            nothing restarts.
    """

    login: Mapping[str, str] = field(repr=False)
    flow: str
    query: str
    checkpoint: str
    terms: LedgerTerms
    batch_bytes: int
    message_bytes: int
    timeout_ms: int = 300_000

    def write(
        self, slot: int, batch: int, chunks: Iterable[MessageBatch], *, compares: bool = False
    ) -> SlotResult:
        """Write the messages of one slot and batch, unless that was done before.

        Args:
            compares: Only compare them with what was written before, and write nothing.

        Raises:
            BrokerError: The transaction was not committed; a repetition of the batch writes it.
        """
        context = SlotBatch(self.flow, self.query, self.checkpoint, batch, slot, self.terms)
        result = SlotResult()
        producer = self._start(slot)
        try:
            written = context.find_written(context.read_last(self._last_entry(slot)))
            if written is None and not compares:
                self._commit(producer, context, chunks, result)
                return result
            found = _count(context, chunks)  # Spark ends a worker that has not read its input
            if written is not None:
                context.require_same(written, found)
        except DeliveryError as error:
            result.refusal = str(error)
        return result

    def has_written(self, batch: int) -> bool:
        """Whether a slot has written a batch, also if the checkpoint is older than that.

        To be called before a start with that batch, by the holder of the checkpoint's lease: no slot writes
        then. Each would refuse only for itself.

        Raises:
            BrokerError: The ledger cannot be read.
            DeliveryError: The batch does not continue the ledger, or another checkpoint has written.
        """
        written = False
        # Before the first batch another checkpoint may have had more slots.
        for slot in range(self._count_slots() if batch == self.terms.since else self.terms.slots):
            context = SlotBatch(self.flow, self.query, self.checkpoint, batch, slot, self.terms)
            last = context.read_last(self._last_entry(slot))
            # A commit is answered before its entry can be read; the start of a producer waits for that. Where
            # another checkpoint has written, or a later batch, a flow may run: its producers are left alone.
            is_mine = last is None or (last.checkpoint == self.checkpoint and last.batch <= batch)
            if is_mine and slot < self.terms.slots:
                self._start(slot)
                last = context.read_last(self._last_entry(slot))
            written |= context.find_written(last) is not None
        return written

    def _start(self, slot: int) -> Producer:
        producer = Producer(
            {
                **self.login,
                "transactional.id": transactional_id(self.flow, self.query, slot),
                "transaction.timeout.ms": self.timeout_ms,
                "partitioner": "murmur2_random",  # that of Java's client: a key keeps its partition
                "linger.ms": 50,
                "batch.size": self.batch_bytes,
                "message.max.bytes": self.message_bytes,
                "queue.buffering.max.messages": 500_000,
                "queue.buffering.max.kbytes": 128 << 10,
                "log_level": 0,
            }
        )
        try:
            _wait_in_steps(producer.init_transactions)  # a further call resumes it
        except KafkaException as error:
            raise self._failure(slot, "cannot begin a transaction", error) from error
        return producer

    def _commit(
        self, producer: Producer, batch: SlotBatch, chunks: Iterable[MessageBatch], result: SlotResult
    ) -> None:
        records = digest = 0
        began_s = time.time()  # which goes on while the machine is suspended
        producer.begin_transaction()
        try:
            for chunk in chunks:
                _produce(producer, chunk.messages, result.written)
                records, digest = records + chunk.records, digest + chunk.digest
                failpoint("transaction-rows")
            entry = batch.entry(records, digest)
            key, ledger = str(batch.slot).encode(), ledger_topic(self.flow, self.query)
            _produce(producer, [(ledger, key, entry.encode(), None, batch.slot)], {})
        except BaseException as error:
            refusal = _abort(producer)
            if isinstance(error, KafkaException):
                what = f"did not write batch {batch.batch}{self._lateness(began_s)}"
                known = refusal if refusal is not None and _is_fatal(error) else error
                raise self._failure(batch.slot, what, known) from error
            raise
        failpoint(f"transaction-commit-{batch.slot}")
        try:
            producer.commit_transaction()
        except KafkaException as error:
            if _is_fenced(error.args[0]) or not self._was_committed(batch.slot, entry.encode()):
                what = f"did not commit batch {batch.batch}{self._lateness(began_s)}"
                raise self._failure(batch.slot, what, error) from error
        failpoint(f"transaction-committed-{batch.slot}")

    def _was_committed(self, slot: int, entry: bytes) -> bool:
        """Whether a transaction was committed whose end is unknown: after another start it has one.

        Not to be asked if another process has begun: the start would end its transaction.
        """
        self._start(slot)
        return self._last_entry(slot) == entry

    def _count_slots(self) -> int:
        """The number of partitions of the ledger; it may have been written with more slots than there are."""
        topic = ledger_topic(self.flow, self.query)
        consumer = Consumer({**self.login, "group.id": "flowcore-ledger", "log_level": 0})
        try:
            found = (
                _wait_in_steps(lambda step_s: consumer.list_topics(topic, step_s)).topics[topic].partitions
            )
        except KafkaException as error:
            raise self._failure(0, "cannot read its ledger", error) from error
        finally:
            consumer.close()
        return len(found)

    def _last_entry(self, slot: int) -> bytes | None:
        """The last committed entry of a slot. Its transactions have ended, so nothing is hidden."""
        topic = ledger_topic(self.flow, self.query)
        consumer = Consumer(
            {
                **self.login,
                "group.id": "flowcore-ledger",  # required by the client; no group is joined
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 5,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        try:
            place = TopicPartition(topic, slot)
            first, end = _wait_in_steps(lambda step_s: consumer.get_watermark_offsets(place, timeout=step_s))
            start, step = end, _FIRST_STEP
            while start > first:
                start, step = max(first, end - step), step * 16
                found = _read_last(consumer, TopicPartition(topic, slot, start))
                if found is not None:
                    return found
        except KafkaException as error:
            raise self._failure(slot, "cannot read its ledger", error) from error
        finally:
            consumer.close()
        return None

    def _lateness(self, began_s: float) -> str:
        return f": {EXPIRED}," if (time.time() - began_s) * 1000 > self.timeout_ms else ""

    def _failure(self, slot: int, what: str, error: KafkaException) -> BrokerError:
        reason = error.args[0]
        text = reason.str() if isinstance(reason, KafkaError) else str(error)
        kind = UnreachableBrokerError if _is_outage(reason) else BrokerError
        text += f"; {FENCED}" if _is_fenced(reason) else ""
        if isinstance(reason, KafkaError) and reason.code() in _REFUSED:
            kind, text = BrokerAccessError, f"{text}: it does not allow this, see {GUIDE}"
        return kind(
            f"slot {slot} of query {self.query!r} {what} at {self.login['bootstrap.servers']} ({text}): "
            "readers see nothing of it, and the next start writes it; check the broker, and that no other "
            f"run writes as {transactional_id(self.flow, self.query, slot)!r}"
        )


def last_series(login: Mapping[str, str], flow: str, query: str) -> int:
    """The largest series of the last entries in a query's ledger; 0 if there are none, or no ledger.

    Raises:
        BrokerError: The ledger cannot be read.
    """
    ledger = TransactionalWriter(login, flow, query, "", LedgerTerms(0, 0), batch_bytes=0, message_bytes=0)
    found = 0
    for slot in range(ledger._count_slots()):  # noqa: SLF001 - of this module
        with suppress(DeliveryError):  # the entry of another program
            entry = ledger._last_entry(slot)  # noqa: SLF001
            found = max(found, LedgerEntry.decode(entry).series if entry else 0)
    return found


def _wait_in_steps(ask: Callable[[float], _T]) -> _T:
    """Call a function of a client with a timeout in seconds, again and again until a broker answers.

    Raises:
        KafkaException: No broker has answered in time or was ready, or one refuses.
    """
    end_s = time.monotonic() + _START_S
    while True:
        try:
            return ask(_STEP_S)
        except KafkaException as error:
            # A broker that is not ready, as after its start, answers so.
            if not _is_outage(error.args[0]) or time.monotonic() >= end_s:
                raise
            time.sleep(_FULL_S)


def _abort(producer: Producer) -> KafkaException | None:
    """Abort a transaction, so that readers need not wait for its time-out; return why that was refused."""
    try:
        producer.abort_transaction(_ABORT_S)
    except KafkaException as error:
        return error
    return None


def _is_fatal(error: KafkaException) -> bool:
    """Whether an error says no more than that the client has failed before: a later call says why."""
    reason = error.args[0]
    return isinstance(reason, KafkaError) and reason.code() == KafkaError._FATAL  # noqa: SLF001


def _is_fenced(reason: object) -> bool:
    return isinstance(reason, KafkaError) and reason.code() in _FENCED


def _is_outage(reason: object) -> bool:
    """Whether a broker did not answer; it may also have refused, as after another producer has begun."""
    return isinstance(reason, KafkaError) and (reason.retriable() or reason.code() in _AWAY)


def _count(context: SlotBatch, chunks: Iterable[MessageBatch]) -> LedgerEntry:
    """The entry of messages that were written before."""
    records = digest = 0
    for chunk in chunks:
        records, digest = records + chunk.records, digest + chunk.digest
    return context.entry(records, digest)


def _produce(producer: Producer, messages: Iterable[Message], written: dict[str, int]) -> None:
    """Hand messages to the client, which sends them in the background; its commit reports failures."""
    produce = producer.produce
    for topic, key, value, headers, partition in messages:
        written[topic] = written.get(topic, 0) + 1
        place = -1 if partition is None else partition
        while True:
            try:
                produce(topic, value, key, place, headers=headers)
                break
            except BufferError:  # the client's queue is full
                producer.poll(_FULL_S)


def _read_last(consumer: Consumer, place: TopicPartition) -> bytes | None:
    """The value of the last committed message from an offset on."""
    consumer.assign([place])
    deadline = time.monotonic() + _READ_S
    found = None
    while time.monotonic() < deadline:
        message = consumer.poll(_FULL_S)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found = message.value()
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's name
            return found
        elif not error.retriable():
            raise KafkaException(error)
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - librdkafka's name
