"""What a start asks the ledger of a query, before any slot writes."""

from __future__ import annotations

import pytest

from flowcore.delivery import LedgerEntry
from flowcore.kafka.transactions import TransactionalWriter, last_series


class Ledger:
    """The last entries of the slots of a ledger."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *entries: bytes | None) -> None:
        self.entries = [*entries]
        monkeypatch.setattr(TransactionalWriter, "_count_slots", lambda _: len(self.entries))
        monkeypatch.setattr(TransactionalWriter, "_last_entry", lambda _, slot: self.entries[slot])


def _entry(batch: int, checkpoint: str = "here", series: int = 0) -> bytes:
    return LedgerEntry(checkpoint, series, batch, 2, 5, 77).encode()


def test_largest_series_is_found_whatever_else_is_in_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger without partitions does not exist yet."""
    Ledger(monkeypatch, None, _entry(9, series=2), b"torn", _entry(100, "elsewhere", series=1))
    assert last_series({}, "f", "q") == 2

    Ledger(monkeypatch)
    assert last_series({}, "f", "q") == 0
