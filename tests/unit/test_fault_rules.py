"""The rules of `flowcore bench faults` accept a right output, and refuse each kind of wrong one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from flowcore.delivery import LedgerEntry
from tests.benchmarks._faults.sales import PARTITIONS, Sales, expected_copy, expected_totals, make_sale
from tests.benchmarks._faults.sent import Sent, digest_of
from tests.benchmarks._faults.verify import Output, find_problems

SALES = Sales(flow="f")
Outputs = dict[str, list[Output]]


def _sent() -> Sent:
    sent = Sent(refused={900}, late={3}, lost={4})
    sent.sales = [(number % PARTITIONS, make_sale(number)) for number in range(200)]
    sent.bad[digest_of(b"bad")] += 1
    return sent


def _outputs(sent: Sent) -> Outputs:
    sales = [sale for _, sale in sent.sales if sale["id"] not in sent.lost]
    totals = expected_totals(sent.sales, SALES.window_s, {3, 4}).values()
    rows = {
        "copies": [expected_copy(sale) for sale in sales],
        "totals": [*totals],
        "late": [sale for sale in sales if sale["id"] == 3],
    }
    outputs = {
        name: [Output(f"{name}:{number}", json.dumps(row).encode()) for number, row in enumerate(found)]
        for name, found in rows.items()
    }
    return {**outputs, "dead letters": [Output("dead", b"bad")]}


def _ledger(records: int) -> list[tuple[int, LedgerEntry]]:
    return [(slot, LedgerEntry("c", 0, batch, 2, records // 4, 0)) for slot in (0, 1) for batch in (0, 1)]


def _written(outputs: Outputs) -> int:
    return sum(map(len, outputs.values()))


def _problems(outputs: Outputs, sent: Sent | None = None) -> list[str]:
    ledger = _ledger(0)
    ledger[0] = (0, replace(ledger[0][1], records=_written(outputs)))
    return [each[:2] for each in find_problems(SALES, sent or _sent(), outputs, ledger).problems]


def test_right_output_has_no_problems() -> None:
    """Late, lost, bad and refused records are where they belong."""
    sent = _sent()
    outputs = _outputs(sent)

    assert len(outputs["totals"]) > 10
    assert _problems(outputs, sent) == []


def _change(outputs: Outputs, name: str, place: int, **columns: object) -> None:
    old = outputs[name][place]
    outputs[name][place] = replace(old, value=json.dumps({**old.row, **columns}).encode())


def _repeat_as_another_record(outputs: Outputs) -> None:
    outputs["copies"].append(replace(outputs["copies"][0], identity="again"))


def _swap_copies_of_a_shop(outputs: Outputs) -> None:
    copies = outputs["copies"]
    copies[20], copies[26] = copies[26], copies[20]


@pytest.mark.parametrize(
    ("spoil", "rules"),
    [
        (lambda out: out["copies"].pop(7), ["N1"]),
        (lambda out: out["dead letters"].clear(), ["N1"]),
        (lambda out: _change(out, "copies", 7, id=900), ["N1", "N1", "N2"]),
        (lambda out: out["copies"].append(out["copies"][0]), ["N3"]),
        (_repeat_as_another_record, ["N1", "N5"]),
        (lambda out: _change(out, "copies", 7, price=-1), ["N4"]),
        (lambda out: _change(out, "totals", 7, total=-1), ["N4", "N4"]),
        (lambda out: out["totals"].pop(), ["N4"]),
        (lambda out: out["late"].clear(), ["N4"]),
        (_swap_copies_of_a_shop, ["N5"]),
    ],
    ids=[
        "lost", "dead letter lost", "of a failed send", "twice", "twice with another id", "other value",
        "other total", "total lost", "late lost", "order",
    ],
)  # fmt: skip
def test_wrong_output_breaks_its_rule(spoil: Callable[[Outputs], object], rules: list[str]) -> None:
    """One change of the right output is found, by the rule that is for it."""
    outputs = _outputs(_sent())
    spoil(outputs)

    assert _problems(outputs) == rules


def test_ledger_must_count_the_output_without_a_gap() -> None:
    """A wrong count, and a slot that leaves out a batch."""
    sent = _sent()
    outputs = _outputs(sent)
    ledger = _ledger(0)

    counts = find_problems(SALES, sent, outputs, ledger).problems
    assert [each[:28] for each in counts] == ["N6: the ledger counts 0 reco"]
    gap = [(0, replace(ledger[0][1], records=_written(outputs))), (0, replace(ledger[1][1], batch=2))]
    assert find_problems(SALES, sent, outputs, gap).problems == ("N6: slot 0 wrote the batches [0, 2]",)


def test_repeats_of_at_least_once_delivery_are_counted_and_must_be_equal() -> None:
    """A repeat with other content breaks rule N3."""
    sent = _sent()
    sales = replace(SALES, delivery="at-least-once")
    outputs = _outputs(sent)
    outputs["copies"] += outputs["copies"][:5]
    assert find_problems(sales, sent, outputs, ()) == replace(
        find_problems(sales, sent, _outputs(sent), ()), repeats=5
    )

    _change(outputs, "copies", -1, price=-1)
    (problem,) = find_problems(sales, sent, outputs, ()).problems
    assert problem.startswith("N3: copies: id copies:4 has the values")
