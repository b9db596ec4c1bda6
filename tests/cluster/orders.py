"""A flow for a cluster: a bounded stage, a native query that joins it, and a query with state by key group.

Only the driver imports this module from disk; workers receive it by ``spark.submit.pyFiles``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flowcore import Csv, Flow, KafkaTopic, KeyedProcessFunction

PARTITIONS = 2


class Account(KeyedProcessFunction):
    """Counts a customer's orders, adds them up, and emits the worker's folder."""

    def open(self, context: Any) -> None:
        """Declare the state of each customer."""
        self.orders = context.value_state("orders", "BIGINT")
        self.spent = context.value_state("spent", "BIGINT")

    def process(self, record: Mapping[str, Any], context: Any) -> Iterator[Mapping[str, Any]]:
        """Emit one account line for each order."""
        self.orders.set(self.orders.get(0) + 1)
        self.spent.set(self.spent.get(0) + record["amount"])
        yield {
            "customer": context.key,
            "orders": self.orders.get(),
            "spent": self.spent.get(),
            "folder": str(Path.cwd()),
        }


flow = Flow("orders")
rates = flow.read("rates", Csv("rates", schema="currency STRING, rate DOUBLE")).aggregate(
    by="currency", rate="max(rate)", name="highest_rates"
)
orders = flow.read(
    "orders",
    KafkaTopic(
        "orders",
        schema="number BIGINT NOT NULL, customer STRING, currency STRING, amount BIGINT",
        partitions=PARTITIONS,
    ),
)
priced = orders.join(rates, on="currency").select("number", "amount * rate as price")
priced.write("priced", KafkaTopic("priced"))
accounts = orders.process(
    Account(),
    by="customer",
    schema="customer STRING, orders BIGINT, spent BIGINT, folder STRING",
    name="account",
)
accounts.write("accounts", KafkaTopic("accounts"))
