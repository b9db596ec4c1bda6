"""Orders of a shop: nested records of twenty fields, the same ones at each call."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa

from flowcore.chains import RecordDict

__all__ = ["ORDER", "ORDER_DDL", "generate_orders"]

ORDER: list[tuple[str, pa.DataType]] = [
    ("order_id", pa.int64()), ("customer_id", pa.int64()), ("created_ms", pa.int64()),
    ("channel", pa.string()),
    ("currency", pa.string()), ("country", pa.string()), ("status", pa.string()), ("priority", pa.bool_()),
    ("weight", pa.float64()), ("discount", pa.float64()), ("tax_rate", pa.float64()),
    ("shipping", pa.float64()), ("warehouse", pa.string()), ("carrier", pa.string()), ("note", pa.string()),
    ("tags", pa.list_(pa.string())),
    ("address", pa.struct([
        pa.field("street", pa.string()), pa.field("city", pa.string()), pa.field("zip", pa.int64()),
        pa.field("geo", pa.struct([("lat", pa.float64()), ("lon", pa.float64())])),
    ])),
    ("payment", pa.struct([
        pa.field("method", pa.string()), pa.field("digits", pa.string()), pa.field("approved", pa.bool_())
    ])),
    ("items", pa.list_(pa.struct([
        pa.field("sku", pa.string()), pa.field("quantity", pa.int64()), pa.field("price", pa.float64())
    ]))),
    ("history", pa.list_(pa.struct([pa.field("at_ms", pa.int64()), pa.field("event", pa.string())]))),
]  # fmt: skip
ORDER_DDL = (
    "order_id BIGINT, customer_id BIGINT, created_ms BIGINT, channel STRING, currency STRING, "
    "country STRING, status STRING, priority BOOLEAN, weight DOUBLE, discount DOUBLE, tax_rate DOUBLE, "
    "shipping DOUBLE, warehouse STRING, carrier STRING, note STRING, tags ARRAY<STRING>, "
    "address STRUCT<street: STRING, city: STRING, zip: BIGINT, geo: STRUCT<lat: DOUBLE, lon: DOUBLE>>, "
    "payment STRUCT<method: STRING, digits: STRING, approved: BOOLEAN>, "
    "items ARRAY<STRUCT<sku: STRING, quantity: BIGINT, price: DOUBLE>>, "
    "history ARRAY<STRUCT<at_ms: BIGINT, event: STRING>>"
)


def generate_orders(number: int) -> Iterator[RecordDict]:
    """Orders of a fixed seed, in the order of their ids."""
    chance = random.Random(7)  # noqa: S311 - not for security
    cities = ["Bern", "Basel", "Zürich", "Genève", "Lugano", "Chur"]
    for order_id in range(number):
        weight = chance.random() * 30
        yield {
            "order_id": order_id, "customer_id": chance.randrange(10_000),
            "created_ms": 1_700_000_000_000 + order_id * 7, "channel": chance.choice(["web", "app", "shop"]),
            "currency": "CHF", "country": chance.choice(["CH", "DE", "FR", "IT"]),
            "status": chance.choice(["new", "packed", "sent", "sent", "sent", "cancelled"]),
            "priority": weight < 2, "weight": weight, "discount": chance.choice([0.0, 0.05, 0.1]),
            "tax_rate": 0.081, "shipping": round(weight * 0.4, 2), "warehouse": f"w{order_id % 7}",
            "carrier": chance.choice(["post", "bike"]), "note": f"order {order_id} of the day",
            "tags": chance.sample(["gift", "fragile", "cold", "bulky", "return"], 2),
            "address": {
                "street": f"Gasse {order_id % 97}", "city": chance.choice(cities),
                "zip": chance.randrange(1000, 9999), "geo": {"lat": 46 + weight / 30, "lon": 7 + weight / 30},
            },
            "payment": {
                "method": "card", "digits": f"{order_id % 10_000:04}", "approved": chance.random() < 0.95
            },
            "items": [
                {"sku": f"s{item}-{order_id % 97}", "quantity": chance.randrange(1, 4), "price": item + 0.5}
                for item in range(chance.randrange(1, 5))
            ],
            "history": [{"at_ms": order_id * 7 + step, "event": f"e{step}"} for step in range(2)],
        }  # fmt: skip
