"""Flows whose plans are golden files: event time, windows, process functions and buffers."""

from collections.abc import Callable
from datetime import timedelta

from flowcore import (
    EndOfStream,
    Flow,
    KafkaTopic,
    Parquet,
    Session,
    Stream,
    Tumbling,
    bounded_out_of_orderness,
)
from flowcore.windows.triggers import Count, Purging
from tests.idle_functions import IdleProcess
from tests.unit.planner.views.native_flows import SALE, _bids, _keep, _Latest, _same, _twice


def watermarked() -> Flow:
    """Timestamps are needed, and no setting stands in the way of anything."""
    flow = Flow("watermarked")
    topic = KafkaTopic(
        "bids",
        schema="shop STRING, at TIMESTAMP",
        event_time="at",
        watermark=bounded_out_of_orderness(timedelta(seconds=4)).with_alignment(timedelta(hours=1)),
    )
    flow.read("bids", topic).write("out", KafkaTopic("out", elements="tagged"))
    return flow


def _timed(flow: Flow) -> Stream:
    topic = KafkaTopic(
        "bids",
        schema=f"{SALE}, note STRING, at TIMESTAMP",
        event_time="at",
        watermark=bounded_out_of_orderness(timedelta(seconds=4)),
    )
    return flow.read("bids", topic)


def windows_by_key() -> Flow:
    """Results and late records leave through one query; what nobody reads does not cross the shuffle."""
    flow = Flow("windows_by_key")
    windows = _timed(flow).window(
        Tumbling(seconds=10), by="shop", allowed_lateness=timedelta(seconds=30), late="side-output",
        name="per_shop",
    )  # fmt: skip
    per_shop = windows.aggregate(bids="count(*)", top="max(price * 2)")
    per_shop.write("out", KafkaTopic("per-shop"))
    per_shop.late.select("shop", "at").write("late", KafkaTopic("late"))
    return flow


def sessions() -> Flow:
    """The gap is computed natively; one record a session is kept."""
    flow = Flow("sessions")
    windows = _timed(flow).window(
        Session(gap="if(price > 10, 5000, 1000)"), by="shop", uses=["shop", "price"]
    )
    windows.reduce(_same, then=_same, schema="label STRING").write("out", KafkaTopic("out"))
    return flow


def windows_by_the_clock() -> Flow:
    """They need no watermarks, and have nothing that is late."""
    flow = Flow("windows_by_the_clock")
    windows = _bids(flow).window(Tumbling(seconds=1), time="processing", trigger=Purging(Count(100)))
    windows.process(_same, schema="label STRING").write("out", KafkaTopic("out"))
    return flow


def keyed_process() -> Flow:
    """State and timers of a function by key, in four parts."""
    flow = Flow("keyed_process")
    found = _timed(flow).process(
        _Alarm(), by=["shop", "note"], uses=["price"], schema="label STRING",
        side_outputs={"rare": "n INT"}, name="alarm",
    )  # fmt: skip
    found.write("out", KafkaTopic("out"))
    found.side_output("rare").write("rare", KafkaTopic("rare"))
    return flow


def process_chain() -> Flow:
    """Functions upstream and downstream of a process, and a side output."""
    flow = Flow("process_chain")
    bids = _timed(flow).map(_same, schema="shop STRING, price DOUBLE", name="cleaned")
    found = bids.process(
        _Alarm(),
        by="shop",
        uses=["price"],
        schema="label STRING",
        side_outputs={"rare": "n INT"},
        name="alarm",
    )
    labels = found.filter(_keep, name="kept")
    labels.map(_same, schema="label STRING", name="shown").write("out", KafkaTopic("out"))
    labels.flat_map(_twice, schema="label STRING", name="copied").write("copies", KafkaTopic("copies"))
    found.side_output("rare").write("rare", KafkaTopic("rare"))
    return flow


def bounded_windows() -> Flow:
    """Over bounded input Spark's own window aggregate gives the same, unless there is Python in it."""
    flow = Flow("bounded_windows")
    sales = flow.read("sales", Parquet("sales", schema=f"{SALE}, at TIMESTAMP"))
    hours = sales.window(Tumbling(timedelta(hours=1)), by="shop", timestamp="at").aggregate(
        total="sum(price)"
    )
    hours.write("hours", Parquet("out/hours"))
    median = sales.window(EndOfStream(), by="shop").process(_same, schema="median DOUBLE")
    median.write("medians", Parquet("out/medians"))
    return flow


def flushed_by_the_trigger() -> Flow:
    """Batches as far apart as the interval; what follows leaves with them, and real time would not wait."""
    flow = Flow("flushed_by_the_trigger")
    top = _bids(flow).aggregate(by="shop", top="max(price)", name="highest").where("top > 1", name="high")
    top.map(_Latest(), schema="shop STRING", passes=["shop"], name="named").write("out", KafkaTopic("out"))
    return flow


def flushed_by_key_group() -> Flow:
    """Buffers of a function and of windows, in one query; of a median nothing is known."""
    flow = Flow("flushed_by_key_group")
    bids = _bids(flow)
    ranked = bids.map(_Latest(), schema=SALE, key="shop", flush=timedelta(minutes=2), name="ranked")
    ranked.filter(_keep, name="kept").write("ranks", KafkaTopic("ranks"))
    windows = bids.window(Tumbling(seconds=10), by="shop", time="processing", name="per_shop")
    windows.aggregate(top="max(price)").write("tops", KafkaTopic("tops"))
    bids.aggregate(by="shop", middle="median(price)", name="middle").write("middles", KafkaTopic("middles"))
    return flow


class _Alarm(IdleProcess):
    """Rings."""


STATEFUL_FLOWS: list[Callable[[], Flow]] = [
    watermarked, windows_by_key, sessions, windows_by_the_clock, keyed_process, bounded_windows,
    flushed_by_the_trigger, flushed_by_key_group, process_chain,
]  # fmt: skip
