"""A slot writes each batch once, whatever was written before, and stops where a batch does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.delivery import LedgerEntry, LedgerTerms, SlotBatch
from flowcore.errors import DeliveryError

TERMS = LedgerTerms(slots=2, since=3)
HERE, ELSEWHERE = "here", "elsewhere"


def _batch(number: int, terms: LedgerTerms = TERMS) -> SlotBatch:
    return SlotBatch("f", "q", HERE, number, 1, terms)


def _entry(number: int, checkpoint: str = HERE) -> LedgerEntry:
    return replace(_batch(number).entry(5, 77), checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("number", "last"),
    [(3, None), (3, _entry(2)), (4, _entry(3)), (9, _entry(8))],
    ids=["first", "first-after-at-least-once", "second", "next"],
)
def test_batch_that_continues_the_ledger_is_written(number: int, last: LedgerEntry | None) -> None:
    """It is the first one, or the one after the last entry."""
    assert _batch(number).find_written(last) is None


def test_batch_in_the_ledger_is_not_written_again() -> None:
    """Its entry says what was written."""
    assert _batch(4).find_written(_entry(4)) == _entry(4)


@pytest.mark.parametrize(
    ("number", "last", "message"),
    [
        (4, None, "has no entry: records may be missing"),
        (4, _entry(3, ELSEWHERE), "has batch 3 of checkpoint elsewhere: records may be missing"),
        (3, _entry(9, ELSEWHERE), "has batch 9 of checkpoint elsewhere: this checkpoint is new"),
        (5, _entry(3), "ends with batch 3: records may be missing"),
        (4, _entry(2), "has batch 2 of checkpoint here: records may be missing"),
        (4, _entry(5), "has batch 5: the checkpoint is older: records would be written twice"),
        (4, replace(_entry(3), slots=3), "was written with 3 slots, and now there are 2"),
    ],
    ids=[
        "lost-ledger",
        "other-checkpoint",
        "new-checkpoint",
        "gap",
        "gap-at-the-start",
        "old-checkpoint",
        "other-slots",
    ],
)
def test_batch_that_does_not_fit_is_refused(number: int, last: LedgerEntry | None, message: str) -> None:
    """The message names query, batch, partition of the ledger, and what would happen."""
    with pytest.raises(DeliveryError) as caught:
        _batch(number).find_written(last)

    assert f"query 'q' of flow 'f' cannot write batch {number} of checkpoint here" in str(caught.value)
    assert str(caught.value).endswith(f"--set delivery.repeat-batch=q:{number}")
    assert f"its ledger f.q.ledger[1] {message}" in str(caught.value)


@pytest.mark.parametrize(
    ("records", "digest", "found"), [(5, 78, "other records"), (4, 77, "4 records")], ids=["ids", "number"]
)
def test_repetition_with_other_records_is_refused(records: int, digest: int, found: str) -> None:
    """The same number of records may be other records."""
    batch = _batch(4)
    batch.require_same(_entry(4), batch.entry(5, 77 + 2**64))

    with pytest.raises(DeliveryError, match=rf"5 records of this batch, and its repetition has {found}"):
        batch.require_same(_entry(4), batch.entry(records, digest))


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.randoms(use_true_random=False))
def test_digest_does_not_depend_on_the_order(hashes: list[int], random: object) -> None:
    """Parts of a batch arrive in any order, and are added modulo 2**64."""
    shuffled = sorted(hashes, key=lambda _: random.random())  # type: ignore[attr-defined]
    parts = sum(each % 2**64 for each in shuffled)

    assert _batch(3).entry(len(hashes), sum(hashes)) == _batch(3).entry(len(hashes), parts)


@given(since=st.integers(0, 5), crashes=st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=12))
def test_every_slot_writes_every_batch_once_through_any_crashes(
    since: int, crashes: list[tuple[int, bool]]
) -> None:
    """A crash comes after some of the slots have committed; the batch is then repeated."""
    terms = LedgerTerms(slots=3, since=since)
    ledgers: list[list[LedgerEntry]] = [[], [], []]

    def run(number: int, slots: int) -> None:
        for slot in range(slots):
            batch = SlotBatch("f", "q", HERE, number, slot, terms)
            entry = batch.entry(number, slot)
            written = batch.find_written(ledgers[slot][-1] if ledgers[slot] else None)
            if written is None:
                ledgers[slot].append(entry)
            else:
                batch.require_same(written, entry)

    for number, (slots, commits) in enumerate(crashes, since):
        run(number, slots)
        if commits:  # all slots have committed, and the query has not
            run(number, 3)
        run(number, 3)

    batches = list(range(since, since + len(crashes)))
    assert [[each.batch for each in ledger if each.checkpoint == HERE] for ledger in ledgers] == [batches] * 3


def test_terms_of_a_start_are_those_of_the_last_one() -> None:
    """The first start has the number of slots of the settings, and begins with its first batch."""
    assert LedgerTerms.choose(None, 3, 2) == TERMS
    assert LedgerTerms.choose(TERMS, 7, 5) == TERMS
    assert LedgerTerms.choose(TERMS, 7, 5, repeat_batch=6) == TERMS
    assert LedgerTerms.choose(None, 3, 2, repeat_batch=2) == TERMS


def test_new_checkpoint_writes_again_if_it_is_asked_for() -> None:
    """What another checkpoint has written does not count then, also not in later batches and starts."""
    terms = LedgerTerms.choose(None, 0, 2, repeat_batch=0)
    assert terms == LedgerTerms(slots=2, since=0, series=1)
    assert LedgerTerms.choose(terms, 0, 2) == terms
    assert _batch(0, terms).find_written(_entry(9, ELSEWHERE)) is None
    first = _batch(0, terms).entry(5, 77)
    assert _batch(0, terms).find_written(first) == first
    assert _batch(1, terms).find_written(first) is None


@pytest.mark.parametrize("last", [None, _entry(2), _entry(3), _entry(7), _entry(9)])
def test_asked_repetition_is_written_once_whatever_the_ledger_says(last: LedgerEntry | None) -> None:
    """The next start, after a crash, does not write it again."""
    terms = LedgerTerms.choose(TERMS, 7, 5, repeat_batch=7)
    batch = _batch(7, terms)

    assert batch.find_written(last) is None
    again = LedgerTerms.choose(terms, 7, 5)
    entry = batch.entry(1, 1)
    assert again == terms == LedgerTerms(slots=2, since=7, series=1)
    assert _batch(7, again).find_written(entry) == entry
    assert _batch(8, again).find_written(entry) is None


def test_asked_repetition_that_was_interrupted_can_be_asked_for_again() -> None:
    """Slot 1 was written before a kill, and the repetition of a function that is random has other records."""
    terms = LedgerTerms.choose(TERMS, 7, 5, repeat_batch=7)
    written = _batch(7, terms).entry(5, 77)
    with pytest.raises(DeliveryError, match=r"other records: .*repeat-batch=q:7$"):
        _batch(7, terms).require_same(written, _batch(7, terms).entry(5, 78))

    again = LedgerTerms.choose(terms, 7, 5, repeat_batch=7)

    assert _batch(7, again).find_written(written) is None


def test_copy_of_a_checkpoint_from_before_its_ledger_began_again_can_continue() -> None:
    """The ledger has a later series than the copy, and a later batch."""
    later = _batch(100, LedgerTerms(2, 52, series=1)).entry(5, 77)
    for asked, series in ((None, 0), (51, 0)):
        terms = LedgerTerms.choose(TERMS, 51, 2, repeat_batch=asked, series=series)
        with pytest.raises(DeliveryError, match=r"the checkpoint is older: .*repeat-batch=q:51$"):
            _batch(51, terms).find_written(later)

    terms = LedgerTerms.choose(TERMS, 51, 2, repeat_batch=51, series=later.series)

    assert terms == LedgerTerms(2, 51, series=2)
    assert _batch(51, terms).find_written(later) is None
    assert _batch(52, terms).find_written(_batch(51, terms).entry(1, 1)) is None


def test_entry_survives_its_bytes_and_nothing_else_is_read() -> None:
    """What another program wrote is not an entry."""
    assert LedgerEntry.decode(_entry(3).encode()) == _entry(3)
    for content in (b"", b"5", b"{}", b"\xff", b'{"checkpoint": "x"}'):
        with pytest.raises(DeliveryError, match="flowcore did not write"):
            LedgerEntry.decode(content)


def test_unreadable_entry_is_refused_until_the_ledger_begins_again() -> None:
    """The error has the setting with which it does; from then on the ledger is read as usual."""
    assert _batch(7, TERMS).read_last(None) is None
    with pytest.raises(DeliveryError, match=r"flowcore did not write.*delivery\.repeat-batch="):
        _batch(7, TERMS).read_last(b"torn")

    terms = LedgerTerms.choose(TERMS, 7, 5, repeat_batch=7)
    assert _batch(7, terms).read_last(b"torn") is None
    assert _batch(7, terms).find_written(None) is None
    entry = _batch(7, terms).entry(1, 1)
    assert _batch(8, terms).read_last(entry.encode()) == entry
    with pytest.raises(DeliveryError):
        _batch(8, terms).read_last(b"torn")
