"""Input that lies: bad bytes, bombs, repeats, aborted transactions, impossible times, another schema."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace

from flowcore.api.schema import Schema
from tests.benchmarks._faults.sales import PARTITIONS, SALE, Sale, encode_sale, make_sale
from tests.benchmarks._faults.scenario import BOTH, Scenario
from tests.benchmarks._faults.trial import Trial
from tests.benchmarks._fuzzed_messages import VALUE_FAULTS, Fuzzer

__all__ = ["LYING_INPUT"]

_DAY_MS = 86_400_000
_FLUSH_S = 60.0
_NEVER = 900_000
"""Ids from here on are in bad messages only."""


def _fuzz(trial: Trial) -> None:
    """Bad messages of all kinds between good ones, in two slices."""
    fuzzer = Fuzzer(Schema.parse(SALE), trial.random)
    kinds = set()
    for _ in range(2):
        for _ in range(5):
            trial.send(60)
            fuzzed = [fuzzer.value(encode_sale(make_sale(_NEVER))) for _ in range(100)]
            kinds |= {kind for kind, _ in fuzzed}
            trial.send_bad(message for _, message in fuzzed)
        trial.finish()
    trial.notes.append(f"{len(kinds)} kinds")
    _end(trial)


def _bombs(trial: Trial) -> None:
    """Deep and large values."""
    depth = trial.random.randrange(2_000, 100_000)
    row = encode_sale(make_sale(_NEVER))[:-1]
    bombs = [
        b"[" * depth,
        b'{"id":' * depth,
        row + b',"x":' + b"[" * depth + b"]" * depth + b"}",
        b'{"id":' + b"9" * 500_000 + b"}",
        b'{"id":1e' + b"9" * depth + b"}",
        Fuzzer(Schema.parse(SALE), trial.random).oversize(1_000_000),
    ]
    trial.random.shuffle(bombs)
    trial.send(200)
    trial.send_bad(bombs)
    trial.send(200)
    _end(trial)


def _tombstones(trial: Trial) -> None:
    """Messages without value in a topic whose values have a schema."""
    for _ in range(4):
        trial.send(100)
        trial.send_bad([None] * trial.random.randint(1, 40))
    _end(trial)


def _repeats(trial: Trial) -> None:
    """A producer without idempotence sends records again, at once and after the next slice."""
    trial.sales = replace(trial.sales, deduplicate=True)
    trial.create_topics()
    earlier: list[Sale] = []
    for _ in range(3):
        sales = trial.next_sales(200)
        again = [sale for sale in (*sales, *earlier) if trial.random.random() < 0.4]
        _produce_with_ids(trial, [*sales, *again])
        trial.sent.sales += ((sale["id"] % PARTITIONS, sale) for sale in sales)
        earlier = sales
        trial.finish()
    _end(trial)


def _produce_with_ids(trial: Trial, sales: list[Sale]) -> None:
    producer = trial.producer(**{"enable.idempotence": False})
    for sale in sales:
        headers: dict[str, str | bytes | None] = {"flowcore-id": f"writer/sales:t:{sale['id']}:0"}
        producer.produce(
            trial.sales.source, encode_sale(sale), partition=sale["id"] % PARTITIONS, headers=headers
        )
    assert producer.flush(_FLUSH_S) == 0


def _aborted(trial: Trial) -> None:
    """Records of aborted transactions between committed ones."""
    trial.create_topics()
    producer = trial.producer(**{"transactional.id": f"{trial.sales.flow}-writer"})
    producer.init_transactions(_FLUSH_S)
    for _ in range(12):
        sales = trial.next_sales(trial.random.randint(1, 100))
        producer.begin_transaction()
        for sale in sales:
            producer.produce(trial.sales.source, encode_sale(sale), partition=sale["id"] % PARTITIONS)
        producer.flush(_FLUSH_S)
        if trial.random.random() < 0.5:
            producer.abort_transaction(_FLUSH_S)
            trial.sent.refused |= {sale["id"] for sale in sales}
        else:
            producer.commit_transaction(_FLUSH_S)
            trial.sent.sales += ((sale["id"] % PARTITIONS, sale) for sale in sales)
    _end(trial)


def _ahead(trial: Trial) -> None:
    """Event times ahead of the clock are dead letters before they move a watermark."""
    now_ms = time.time_ns() // 1_000_000
    for _ in range(2):
        trial.send(200)
        days = [trial.random.choice((2, 400, 40_000, 1 << 30)) for _ in range(20)]
        trial.send_bad(encode_sale(make_sale(_NEVER, at=now_ms + day * _DAY_MS)) for day in days)
        trial.finish()
    _end(trial)


def _behind(trial: Trial) -> None:
    """Sales whose windows were emitted leave by the side output, and change no total."""
    trial.send(300)
    trial.close_windows()
    trial.finish()
    late = trial.next_sales(60)
    late = [{**sale, "at": trial.random.randrange(20_000)} for sale in late]
    trial.sent.late |= {sale["id"] for sale in late}
    trial.send_sales(late)
    trial.send(200)
    _end(trial)


def _schema_changes(trial: Trial) -> None:
    """The writer adds a field, then renames one, then changes a type, and returns."""

    def with_more(sale: Sale) -> bytes:
        return json.dumps({"currency": "CHF", **sale, "tags": [{"a": [1, None]}]}).encode()

    def broken() -> Iterator[bytes]:
        for _ in range(50):
            sale = make_sale(_NEVER)
            if trial.random.random() < 0.5:
                sale["cost"] = sale.pop("price")
            else:
                sale["price"] = str(sale["price"])
            yield json.dumps(sale).encode()

    trial.send(200)
    trial.send_sales(trial.next_sales(200), encode=with_more)
    trial.send_bad(broken())
    trial.finish()
    trial.send_bad(broken())
    trial.send(200)
    _end(trial)


def _end(trial: Trial) -> None:
    trial.close_windows()
    trial.finish()


LYING_INPUT = (
    Scenario(
        id="bad-bytes",
        title=f"1,000 messages with {len(VALUE_FAULTS)} kinds of faults",
        play=_fuzz,
        deliveries=BOTH,
    ),
    Scenario(id="bombs", title="values of great depth and size", play=_bombs, deliveries=BOTH),
    Scenario(id="tombstones", title="messages without value", play=_tombstones, deliveries=BOTH),
    Scenario(
        id="producer-repeats", title="a retrying producer sends records twice", play=_repeats, deliveries=BOTH
    ),
    Scenario(
        id="aborted-transactions",
        title="records of aborted transactions",
        play=_aborted,
        deliveries=BOTH,
        quick="at-least-once",
    ),
    Scenario(id="time-ahead", title="event times days and millennia ahead", play=_ahead, deliveries=BOTH),
    Scenario(
        id="time-behind", title="event times of windows that were emitted", play=_behind, deliveries=BOTH
    ),
    Scenario(
        id="schema-changes",
        title="the writer's schema changes in mid-stream",
        play=_schema_changes,
        deliveries=BOTH,
    ),
)
