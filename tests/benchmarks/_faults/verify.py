"""What must be true after a trial: the rules N1 to N6 over what readers of committed records see.

N1: each acknowledged sale is a copy, a dead letter or listed as lost. N2: nothing of failed sends. N3: each
record once (exactly-once), or after removal of repeats, which are equal. N4: values equal the oracle. N5: the
copies of a shop are in order. N6: the ledger's counts equal the outputs, batch by batch without a gap. N7,
the time of recovery, is checked by `tests.benchmarks._faults.scenario`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowcore.delivery import LedgerEntry, ledger_topic
from flowcore.kafka.topics import partition_counts
from pipelines.auctions.readers import read_messages
from tests.benchmarks._faults.sales import Sale, Sales, expected_copy, expected_totals
from tests.benchmarks._faults.sent import Sent, digest_of

if TYPE_CHECKING:
    from tests.benchmarks._faults.trial import Trial

__all__ = ["Output", "Verdict", "find_problems", "read_ledger", "verify_trial"]

_SHOWN = 5
Ledger = Sequence[tuple[int, LedgerEntry]]
"""Entries with their slots, in order."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found wrong, each with its rule; and the number of repeats of at-least-once delivery."""

    problems: tuple[str, ...]
    repeats: int


@dataclass(frozen=True, slots=True)
class Output:
    """A record of an output topic."""

    identity: str
    value: bytes | None

    @property
    def row(self) -> Sale:
        """The value as a row."""
        found: Sale = json.loads(self.value or b"null")
        return found


def verify_trial(trial: Trial) -> Verdict:
    """Compare what a trial has sent with the output topics and the ledger as they are now."""
    outputs = {
        name: [_read_output(each) for each in _messages(trial, topic)]
        for name, topic in trial.sales.outputs.items()
    }
    ledger = [*trial.lost_ledger, *read_ledger(trial)]
    found = find_problems(trial.sales, trial.sent, outputs, ledger)
    problems = [*trial.problems, *found.problems]
    if trial.reader is not None:
        trial.reader.wait_for(len(outputs["copies"]))
        seen = Counter(_read_output(message) for message in trial.reader.found)
        problems += _compare("N3: a concurrent reader's copies", seen, Counter(outputs["copies"]))
    return Verdict(tuple(problems), found.repeats)


def read_ledger(trial: Trial) -> list[tuple[int, LedgerEntry]]:
    """The entries of a ledger as it is now, with their slots."""
    topic = ledger_topic(trial.sales.flow, trial.checkpoint.name)
    return [(each.partition(), LedgerEntry.decode(each.value())) for each in _messages(trial, topic)]


def find_problems(
    sales: Sales, sent: Sent, outputs: Mapping[str, Sequence[Output]], ledger: Ledger
) -> Verdict:
    """Compare what was sent with what readers of committed records see.

    Args:
        outputs: The records of each output in the order of each partition, by the names of `Sales.outputs`.
    """
    problems: list[str] = []
    once: dict[str, list[Output]] = {}
    for name, records in outputs.items():
        once[name], different = _remove_repeats(records)
        problems += (f"N3: {name}: {each}" for each in different)
    written = sum(map(len, outputs.values()))
    repeats = written - sum(map(len, once.values()))
    if sales.delivery == "exactly-once":
        problems += [f"N3: {repeats} records are there twice"] if repeats else []
        problems += _check_ledger(ledger, written)
    copies = [each.row for each in once["copies"]]
    problems += _check_copies(sent, copies)
    if not sales.deduplicate:  # which groups the records of a shop by their ids
        problems += _check_order(sent, copies)
    refused = Counter(digest_of(each.value) for each in once["dead letters"])
    problems += _compare("N1: dead letters", refused, sent.bad)
    counted = [] if sales.realtime else sent.unique
    totals = expected_totals(counted, sales.window_s, sent.late | sent.lost | sent.uncounted)
    problems += _compare(
        "N4: totals of windows", _texts(each.row for each in once["totals"]), _texts(totals.values())
    )
    late = Counter(each.row["id"] for each in once["late"])
    problems += _compare("N4: late sales", late, Counter(sent.late))
    return Verdict(tuple(problems), repeats)


def _check_copies(sent: Sent, copies: list[Sale]) -> Iterator[str]:
    sales = {sale["id"]: sale for _, sale in sent.unique}
    ids = [copy["id"] for copy in copies]
    yield from _compare("N1: sales", Counter(ids), Counter(sales.keys() - sent.lost))
    if failed := sent.refused & {*ids}:
        yield f"N2: {_few(failed)} were copied, and their sends failed"
    wrong = [copy for copy in copies if copy["id"] in sales and copy != expected_copy(sales[copy["id"]])]
    if wrong:
        yield f"N4: copies have other values: {_few(wrong)}"


def _check_order(sent: Sent, copies: list[Sale]) -> Iterator[str]:
    places = {sale["id"]: place for place, (_, sale) in enumerate(sent.unique)}
    found: dict[str, list[int]] = defaultdict(list)
    for copy in copies:
        if copy["id"] in places:
            found[copy["shop"]].append(places[copy["id"]])
    for shop, mine in found.items():
        if mine != sorted(mine):
            yield f"N5: the copies of shop {shop} are not in the order of its sales"


def _check_ledger(ledger: Ledger, records: int) -> Iterator[str]:
    batches: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for slot, entry in ledger:  # a new series leaves out the batch that moves state
        batches[entry.checkpoint, slot, entry.series].append(entry.batch)
    counted = sum(entry.records for _, entry in ledger)
    if counted != records:
        yield f"N6: the ledger counts {counted} records, and the outputs have {records}"
    for (_, slot, _), found in batches.items():
        if found != [*range(found[0], found[0] + len(found))]:
            yield f"N6: slot {slot} wrote the batches {found}"


def _remove_repeats(records: Iterable[Output]) -> tuple[list[Output], list[str]]:
    """The first record of each id; and what is wrong with the others."""
    first: dict[str, Output] = {}
    different = []
    for record in records:
        before = first.setdefault(record.identity, record)
        if before.value != record.value:
            different.append(f"id {record.identity} has the values {before.value!r} and {record.value!r}")
    return [*first.values()], different[:_SHOWN]


def _read_output(message: Any) -> Output:
    headers = dict(message.headers() or ())
    identity = headers.get("flowcore-id")
    if identity is None:  # the dead letter of a source has the place of its message
        place = (headers.get(f"flowcore-{name}") or b"" for name in ("topic", "partition", "offset"))
        identity = b":".join(place)
    return Output(identity.decode(), message.value())


def _messages(trial: Trial, topic: str) -> list[Any]:
    servers = trial.site.servers
    if partition_counts(servers, [topic])[topic] is None:
        return []
    found: list[Any] = [message for messages in read_messages(servers, topic) for message in messages]
    return sorted(found, key=lambda each: (each.partition(), each.offset()))


def _compare(what: str, found: Counter[Any], wanted: Counter[Any]) -> Iterator[str]:
    if missing := wanted - found:
        yield f"{what}: {missing.total()} are missing: {_few(missing)}"
    if more := found - wanted:
        yield f"{what}: {more.total()} are unexpected: {_few(more)}"


def _texts(rows: Iterable[Sale]) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


def _few(found: Iterable[Any]) -> str:
    return ", ".join(map(str, sorted(found, key=str)[:_SHOWN]))
