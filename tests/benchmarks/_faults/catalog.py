"""A bounded flow on which faults are injected: the revenue of each shop, from files to files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from flowcore import Flow, Parquet

__all__ = ["Catalog"]

_ORDER = "shop STRING, price BIGINT"


@dataclass(frozen=True, slots=True)
class Catalog:
    """The flow of one trial; ``folder`` is where its input and output are."""

    folder: str

    def declare(self) -> Flow:
        """Declare the flow."""
        flow = Flow("catalog")
        orders = flow.read("orders", Parquet(f"{self.folder}/orders", schema=_ORDER))
        revenue = orders.aggregate(by="shop", total="sum(price)", n="count(*)", name="revenue")
        revenue.write("revenue_files", Parquet(f"{self.folder}/revenue"))
        return flow

    def add_orders(self, number: int, count: int) -> None:
        """Write one more file of orders."""
        orders = Path(self.folder) / "orders"
        orders.mkdir(parents=True, exist_ok=True)
        rows = [(number * count + each) for each in range(count)]
        table = pa.table({"shop": [f"s{each % 7}" for each in rows], "price": rows})
        pq.write_table(table, orders / f"part-{number}.parquet")

    def expected(self) -> dict[str, tuple[int, int]]:
        """Sum and count of each shop."""
        sums: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        for row in pq.read_table(f"{self.folder}/orders").to_pylist():
            sums[row["shop"]] += row["price"]
            counts[row["shop"]] += 1
        return {shop: (sums[shop], counts[shop]) for shop in sums}

    def written(self) -> dict[str, tuple[int, int]]:
        """Sum and count of each shop, as a reader of the output sees them; empty without output."""
        folder = Path(self.folder) / "revenue"
        if not folder.exists():
            return {}
        return {row["shop"]: (row["total"], row["n"]) for row in pq.read_table(folder).to_pylist()}
