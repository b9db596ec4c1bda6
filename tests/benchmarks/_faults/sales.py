"""The flow on which faults are injected, its records, and what it must emit.

One query reads sales and writes three topics: a copy of each sale, made by a Python function; the totals of
windows; and sales that came too late for their window. A sale's shop says which partition it was sent to, so
the copies of a shop have an order. Times are milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flowcore import Flow, KafkaTopic, Tumbling, monotonous
from flowcore.api.connectors import Delivery

__all__ = [
    "PARTITIONS",
    "SALE",
    "STEP_MS",
    "Sale",
    "Sales",
    "Variant",
    "encode_sale",
    "expected_copy",
    "expected_totals",
    "make_sale",
]

Sale = dict[str, Any]
Variant = Literal["", "one more output", "other steps", "another name"]
"""How a flow differs from its first version."""
SALE = "id BIGINT NOT NULL, shop STRING NOT NULL, price BIGINT NOT NULL, at BIGINT NOT NULL"
PARTITIONS = 2
STEP_MS = 100
"""Between two sales."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sales:
    """The flow of one trial, whose topics begin with its name.

    Attributes:
        deduplicate: The source drops records whose ``flowcore-id`` it has read before.
        realtime: Only the copies, made by Spark, so that the query can run in real time.
        variant: Another version of the flow.
    """

    flow: str
    delivery: Delivery = "exactly-once"
    deduplicate: bool = False
    realtime: bool = False
    window_s: int = 5
    variant: Variant = ""

    @property
    def source(self) -> str:
        """The topic of the sales."""
        return f"{self.flow}-sales"

    @property
    def outputs(self) -> dict[str, str]:
        """The topics that the flow writes, by what they hold."""
        names = {name: f"{self.flow}-{name}" for name in ("copies", "totals", "late")}
        return {**names, "dead letters": f"{self.source}.dead-letter"}

    def declare(self) -> Flow:
        """Declare the flow."""
        outputs = self.outputs
        flow = Flow(f"{self.flow}-renamed" if self.variant == "another name" else self.flow)
        source = KafkaTopic(
            self.source, schema=SALE, event_time="at", watermark=monotonous(), deduplicate=self.deduplicate,
        )  # fmt: skip
        sales = flow.read("sales", source)
        if self.realtime:
            doubled = sales.with_columns(price="price * 2")
            doubled.write("copies", KafkaTopic(outputs["copies"], delivery=self.delivery), key="shop")
            return flow
        if self.variant == "other steps":  # with the same result
            taxed = sales.with_columns(tax="price / 10").where("tax >= 0")
            sales = taxed.select("id", "shop", "price", "at")
        copies = sales.map(_double_price, schema=SALE, name="doubled")
        if self.variant == "one more output":
            copies.write("more", KafkaTopic(f"{self.flow}-more", delivery=self.delivery), key="shop")
        copies.write("copies", KafkaTopic(outputs["copies"], delivery=self.delivery), key="shop")
        windows = sales.window(
            Tumbling(self.window_s), by="shop", late="side-output", name="windows"
        ).aggregate(total="sum(price)", n="count(*)", first="min(id)")
        windows.select("shop", "total", "n", "first").write(
            "totals", KafkaTopic(outputs["totals"], delivery=self.delivery), key="shop"
        )
        windows.late.write("late", KafkaTopic(outputs["late"], delivery=self.delivery), key="shop")
        return flow


def make_sale(number: int, *, shops: int = 6, digits: int = 1, at: int | None = None) -> Sale:
    """The sale of a number.

    Args:
        shops: Number of shops, a multiple of the number of partitions.
        digits: Digits of a shop's name.
        at: Time of the sale; by default from its number.
    """
    at = number * STEP_MS if at is None else at
    shop = f"s{number % shops:0{digits}d}"
    return {"id": number, "shop": shop, "price": 1 + number * 37 % 1000, "at": at}


def expected_copy(sale: Sale) -> Sale:
    """The copy of a sale."""
    return {**sale, "price": sale["price"] * 2}


def expected_totals(
    sales: Iterable[tuple[int, Sale]], window_s: int, late: Iterable[int] = ()
) -> Mapping[tuple[str, int], Sale]:
    """The totals of complete windows, by shop and the window's start.

    Args:
        sales: The sales with their partitions, in order of time within each partition.
        late: Ids of sales that no window counts.
    """
    left_out = set(late)
    newest: dict[int, int] = {}
    rows: dict[tuple[str, int], list[Sale]] = {}
    size = window_s * 1000
    for partition, sale in sales:
        newest[partition] = max(newest.get(partition, 0), sale["at"])
        if sale["id"] not in left_out:
            rows.setdefault((sale["shop"], sale["at"] // size * size), []).append(sale)
    complete_ms = min(newest.values(), default=0)
    return {
        (shop, start): {
            "shop": shop,
            "total": sum(sale["price"] for sale in found),
            "n": len(found),
            "first": min(sale["id"] for sale in found),
        }
        for (shop, start), found in rows.items()
        if start + size <= complete_ms
    }


def _double_price(sale: Sale) -> Sale:
    return {**sale, "price": sale["price"] * 2}


def encode_sale(sale: Sale) -> bytes:
    """A sale as a message."""
    return json.dumps(sale).encode()
