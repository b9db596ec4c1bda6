"""A slot's transactions on a real broker: ledger, fencing, and commits whose end is unknown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from kafka.partitioner.default import murmur2

from flowcore.delivery import LedgerTerms, ledger_topic
from flowcore.errors import BrokerError, DeliveryError
from flowcore.kafka import transactions
from flowcore.kafka.open_transactions import open_transactions
from flowcore.kafka.topics import ensure_topics
from flowcore.kafka.transactions import LEDGER_CONFIGS, Message, MessageBatch, TransactionalWriter
from flowcore.spark.errors import find_mishap

pytestmark = pytest.mark.kafka


@pytest.fixture
def writer(kafka: str, live: Any) -> TransactionalWriter:
    """The writer of a query with one slot."""
    query = f"q-{live.suffix}"
    ensure_topics(kafka, {ledger_topic("f", query): 1}, LEDGER_CONFIGS)
    ensure_topics(kafka, {query: 4})
    login = {"bootstrap.servers": kafka}
    return TransactionalWriter(login, "f", query, "here", LedgerTerms(1, 0), 512 << 10, 1 << 20)


def _batch(writer: TransactionalWriter, *values: bytes) -> list[MessageBatch]:
    messages: list[Message] = [(writer.query, value, value, [("id", value)], None) for value in values]
    return [MessageBatch([each], 1, hash(each[1])) for each in messages]


def _failing(writer: TransactionalWriter) -> Iterator[MessageBatch]:
    yield from _batch(writer, b"c")
    raise ZeroDivisionError


def test_slot_writes_a_batch_once_and_refuses_a_gap(writer: TransactionalWriter, live: Any) -> None:
    """Aborted entries after the last one do not hide it."""
    assert writer.write(0, 0, _batch(writer, b"a", b"b")).written == {writer.query: 2}
    with pytest.raises(ZeroDivisionError):
        writer.write(0, 1, _failing(writer))
    producer = writer._start(0)
    for _ in range(20):
        producer.begin_transaction()
        producer.produce(ledger_topic("f", writer.query), b"aborted", partition=0)
        producer.flush()
        producer.abort_transaction()
    assert writer.write(0, 0, _batch(writer, b"b", b"a")).written == {}
    assert writer.write(0, 1, []).written == {}
    refused = writer.write(0, 3, _batch(writer, b"d"))

    assert "ends with batch 1" in (refused.refusal or "")
    assert sorted(record.value for record in live.records(writer.query)) == [b"a", b"b"]


def test_batch_that_any_slot_has_written_is_known_before_a_start(kafka: str, live: Any) -> None:
    """An older copy of a checkpoint knows of no such batch, and compares it; a still older one is refused."""
    query = f"slots-{live.suffix}"
    ensure_topics(kafka, {ledger_topic("f", query): 2}, LEDGER_CONFIGS)
    login = {"bootstrap.servers": kafka}
    writer = TransactionalWriter(login, "f", query, "here", LedgerTerms(2, 0), 512 << 10, 1 << 20)

    assert not writer.has_written(0)
    for slot in range(2):
        writer.write(slot, 0, [])
    assert (writer.has_written(0), writer.has_written(1)) == (True, False)
    writer.write(1, 1, [])
    assert writer.has_written(1)
    with pytest.raises(DeliveryError, match="the checkpoint is older"):
        writer.has_written(0)


def test_key_has_the_partition_of_the_java_client(writer: TransactionalWriter, live: Any) -> None:
    """A topic that was written at least once before keeps each key in its partition."""
    keys = [f"key-{number}".encode() for number in range(30)]
    writer.write(0, 0, _batch(writer, *keys))

    found = {record.key: record.partition for record in live.records(writer.query)}
    assert found == {key: (murmur2(key) & 0x7FFFFFFF) % 4 for key in keys}


def test_newer_producer_of_a_slot_fences_an_older_one(writer: TransactionalWriter, live: Any) -> None:
    """What a stopped process has written and not committed is never seen."""
    old = writer._start(0)
    old.begin_transaction()
    old.produce(writer.query, b"old")
    old.flush(10)

    writer.write(0, 0, _batch(writer, b"new"))

    with pytest.raises(KafkaException):
        old.commit_transaction(10)
    assert [record.value for record in live.records(writer.query)] == [b"new"]


def test_older_producer_leaves_the_newer_one_alone(writer: TransactionalWriter, live: Any) -> None:
    """A process that was stopped goes on in its transaction while its successor is in one."""
    newer: list[Producer] = []

    def stopped() -> Iterator[MessageBatch]:
        yield from _batch(writer, b"old")
        newer.append(writer._start(0))
        newer[0].begin_transaction()
        newer[0].produce(writer.query, b"new")
        newer[0].flush(10)

    with pytest.raises(BrokerError, match=transactions.FENCED) as raised:
        writer.write(0, 0, stopped())
    newer[0].commit_transaction(10)

    assert find_mishap(raised.value) is not None
    assert [record.value for record in live.records(writer.query)] == [b"new"]


def test_transaction_that_kafka_has_aborted_says_so(writer: TransactionalWriter, live: Any) -> None:
    """A query is started again after this error, which a suspended machine causes; with more time it ends."""

    def slow() -> Iterator[MessageBatch]:
        yield from _batch(writer, b"a")
        time.sleep(25)  # the broker looks for such transactions every ten seconds

    with pytest.raises(BrokerError, match=transactions.EXPIRED) as raised:
        replace(writer, timeout_ms=1_000).write(0, 0, slow())

    assert find_mishap(raised.value) == "a transaction took too long"
    assert live.records(writer.query) == []
    assert writer.write(0, 0, _batch(writer, b"a")).written == {writer.query: 1}


def test_open_transactions_have_their_start(writer: TransactionalWriter, kafka: str) -> None:
    """Those of one query, not of another whose name begins alike; none after their end."""
    query, other = writer.query, f"{writer.query}.1"
    before_ms = time.time_ns() // 1_000_000
    producer = writer._start(0)
    nothing = open_transactions(kafka, "f", [query], 10)
    producer.begin_transaction()
    producer.produce(query, b"open")
    producer.flush(10)
    alike = replace(writer, query=other)._start(0)
    alike.begin_transaction()
    alike.produce(query, b"open")
    alike.flush(10)

    found = open_transactions(kafka, "f", [query, "idle"], 10)
    producer.abort_transaction(10)
    alike.abort_transaction(10)

    assert nothing == {query: []}
    assert found["idle"] == []
    (start_ms,) = found[query]
    assert before_ms <= start_ms <= time.time_ns() // 1_000_000
    deadline = time.monotonic() + 300  # Kafka answers before it has marked the partitions
    while open_transactions(kafka, "f", [query], 10) != {query: []}:
        assert time.monotonic() < deadline


def _commit_and_fail(producer: Producer) -> None:
    Producer.commit_transaction(producer)
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def _fail(producer: Producer) -> None:
    producer.flush()
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


@pytest.mark.parametrize(("commit", "seen"), [(_commit_and_fail, [b"a"]), (_fail, [])], ids=["done", "not"])
def test_commit_with_an_unknown_end_is_resolved_by_the_next_producer(
    writer: TransactionalWriter,
    live: Any,
    monkeypatch: pytest.MonkeyPatch,
    commit: Callable[[Producer], None],
    seen: list[bytes],
) -> None:
    """The ledger says whether it was committed. If not, the batch can be written again."""

    class Doubtful(Producer):
        def commit_transaction(self, *_: Any) -> None:
            commit(self)

    monkeypatch.setattr(transactions, "Producer", Doubtful)
    if seen:
        writer.write(0, 0, _batch(writer, b"a"))
    else:
        with pytest.raises(BrokerError, match="did not commit batch 0"):
            writer.write(0, 0, _batch(writer, b"a"))
    monkeypatch.undo()

    assert [record.value for record in live.records(writer.query)] == seen
    writer.write(0, 0, _batch(writer, b"a"))
    assert [record.value for record in live.records(writer.query)] == [b"a"]
