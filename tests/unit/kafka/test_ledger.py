"""What a start asks the ledger of a query, before any slot writes."""

from __future__ import annotations

import signal
import time

import pytest
from confluent_kafka import KafkaError, KafkaException

from flowcore.delivery import LedgerEntry, LedgerTerms
from flowcore.errors import DeliveryError, UnreachableBrokerError
from flowcore.kafka import transactions
from flowcore.kafka.transactions import TransactionalWriter, last_series


class Ledger:
    """The last entries of the slots of a ledger; further ones can be read when their producer has started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *entries: bytes | None) -> None:
        self.entries = [*entries]
        self.committed: dict[int, bytes] = {}
        self.started: list[int] = []
        monkeypatch.setattr(TransactionalWriter, "_count_slots", lambda _: len(self.entries))
        monkeypatch.setattr(TransactionalWriter, "_last_entry", lambda _, slot: self.entries[slot])
        monkeypatch.setattr(TransactionalWriter, "_start", lambda _, slot: self.start(slot))

    def start(self, slot: int) -> None:
        self.started.append(slot)
        self.entries[slot] = self.committed.get(slot, self.entries[slot])


def _entry(batch: int, checkpoint: str = "here", series: int = 0) -> bytes:
    return LedgerEntry(checkpoint, series, batch, 2, 5, 77).encode()


def _writer(slots: int = 2) -> TransactionalWriter:
    return TransactionalWriter({}, "f", "q", "here", LedgerTerms(slots, 0), 1, 1)


def test_entry_that_is_committed_and_cannot_be_read_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kafka answers a commit before it marks the partitions, and the driver may be killed between both."""
    ledger = Ledger(monkeypatch, _entry(3), _entry(3))
    ledger.committed = {1: _entry(4)}

    assert _writer().has_written(4)
    assert ledger.started == [0, 1]

    ledger.entries = [_entry(3), _entry(4)]
    ledger.committed = {0: _entry(4)}
    assert not _writer().has_written(5)


@pytest.mark.parametrize("entry", [_entry(3, "elsewhere"), _entry(5)], ids=["other-checkpoint", "old-copy"])
def test_producers_of_a_flow_that_may_run_are_left_alone(
    entry: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start on another folder holds another lease; it is refused, and ends no transaction."""
    ledger = Ledger(monkeypatch, entry, entry)

    with pytest.raises(DeliveryError):
        _writer().has_written(4)

    assert ledger.started == []


def test_slots_that_do_not_write_any_more_are_only_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another checkpoint has written there, or nobody."""
    ledger = Ledger(monkeypatch, None, None, None)

    assert not _writer(slots=2).has_written(0)

    assert ledger.started == [0, 1]


def test_largest_series_is_found_whatever_else_is_in_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger without partitions does not exist yet."""
    Ledger(monkeypatch, None, _entry(9, series=2), b"torn", _entry(100, "elsewhere", series=1))
    assert last_series({}, "f", "q") == 2

    Ledger(monkeypatch)
    assert last_series({}, "f", "q") == 0


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("ask", ["_start", "_last_entry"])
def test_wait_for_a_broker_can_be_interrupted(ask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal does not end a call of librdkafka, which lasts for two minutes if no broker answers."""
    monkeypatch.setattr(transactions, "_START_S", 10.0)
    monkeypatch.setattr(transactions, "_STEP_S", 0.1)
    login = {"bootstrap.servers": "127.0.0.1:1"}
    writer = TransactionalWriter(login, "f", "q", "here", LedgerTerms(1, 0), 1 << 20, 1 << 20)
    before = signal.signal(signal.SIGALRM, _interrupt)
    began_s = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt):
            getattr(writer, ask)(0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert time.monotonic() - began_s < 5


def test_wait_for_a_slow_broker_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start of a producer takes several steps, and ends at last with an outage if no broker answers."""
    monkeypatch.setattr(transactions, "_STEP_S", 0.2)
    slow = {"bootstrap.servers": "", "test.mock.num.brokers": "1", "test.mock.broker.rtt": "100"}
    writer = TransactionalWriter(slow, "f", "q", "here", LedgerTerms(1, 0), 1 << 20, 1 << 20)
    writer._start(0)

    monkeypatch.setattr(transactions, "_START_S", 0.5)
    away = {"bootstrap.servers": "127.0.0.1:1"}
    writer = TransactionalWriter(away, "f", "q", "here", LedgerTerms(1, 0), 1 << 20, 1 << 20)
    for ask in (writer._count_slots, lambda: writer._start(0), lambda: writer._last_entry(0)):
        with pytest.raises(UnreachableBrokerError):
            ask()


def test_start_waits_for_a_broker_that_is_not_ready() -> None:
    """As after its restart, while it reads its transactions; another answer is an error at once."""
    asked = []

    def ask(_: float) -> str:
        asked.append(1)
        if len(asked) < 3:
            raise KafkaException(KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, retriable=True))
        if len(asked) == 3:
            return "ready"
        raise KafkaException(KafkaError(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))

    assert transactions._wait_in_steps(ask) == "ready"
    with pytest.raises(KafkaException):
        transactions._wait_in_steps(ask)
    assert len(asked) == 4
