"""Streams of one flow, for tests of what is declared on them."""

from flowcore import Flow, KafkaTopic, Parquet


class GivenStreams:
    """Two bounded and two unbounded streams, and an aggregate whose rows replace earlier ones."""

    def __init__(self) -> None:
        self.flow = Flow("given")
        self.sales = self.flow.read(
            "sales", Parquet("s", schema="shop STRING, price DOUBLE, tags ARRAY<STRING>")
        )
        self.shops = self.flow.read("shops", Parquet("p", schema="shop STRING, city STRING"))
        self.bids = self.flow.read(
            "bids", KafkaTopic("bids", schema="shop STRING, price DOUBLE, tags ARRAY<STRING>")
        )
        self.asks = self.flow.read(
            "asks", KafkaTopic("asks", schema="shop STRING, price DOUBLE, tags ARRAY<STRING>")
        )
        self.best = self.bids.aggregate(by="shop", best="max(price)", name="best")
