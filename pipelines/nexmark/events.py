"""Nexmark's events with all columns that its queries read, and the topics of these events.

``generator`` makes ids, prices and times. Here they get Nexmark's names and its texts: half of all bids come
through one of four hot channels, the others through one of 10,000, most of which are named in the URL; filler
text brings a bid to about 100 bytes. Prices are integer cents.

A stream of events has no end, so no watermark would ever complete the last windows. Therefore each partition
ends with one event of two days later.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer

from flowcore import KafkaTopic, bounded_out_of_orderness
from flowcore.errors import BrokerError
from flowcore.kafka.security import client_login
from flowcore.kafka.topics import ensure_topics
from pipelines.nexmark import generator
from pipelines.nexmark.feed import encode, feed
from pipelines.nexmark.generator import NexmarkConfig, below, draw

__all__ = ["AUCTIONS", "BIDS", "PERSONS", "Tables", "feed_events", "result_topic"]

Tables = Mapping[str, pa.Table]
"""The rows of each kind of event, by the name that the queries give it: person, auction, bid."""

HOT_CHANNELS: Final = ("Google", "Facebook", "Baidu", "Apple")
HOT_CHANNELS_RATIO: Final = 2
CHANNELS: Final = 10_000
CHANNELS_WITH_ID: Final = 0.9
FILLER_BYTES: Final = 68  # on average, as Nexmark fills a bid of 32 bytes up to 100
LATER: Final = timedelta(days=2)
PARTITIONS: Final = 2
_PIECE_EVENTS: Final = 500_000
_LETTERS: Final = np.array(list("abcdefghijklmnopqrstuvwxyz"))


def _topic(name: str, schema: str) -> KafkaTopic:
    watermark = bounded_out_of_orderness(timedelta(seconds=4))
    return KafkaTopic(f"nexmark-{name}", schema=schema, event_time="date_time", watermark=watermark)


PERSONS: Final = _topic("person", "id BIGINT, name STRING, city STRING, state STRING, date_time BIGINT")
AUCTIONS: Final = _topic(
    "auction",
    "id BIGINT, seller BIGINT, category BIGINT, initial_bid BIGINT, reserve BIGINT, date_time BIGINT, "
    "expires BIGINT",
)
BIDS: Final = _topic(
    "bid",
    "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, date_time BIGINT, extra STRING",
)


def result_topic(query: str) -> KafkaTopic:
    """The topic of a query's results."""
    return KafkaTopic(f"nexmark-{query}", partitions=PARTITIONS)


def feed_events(servers: str, config: NexmarkConfig, events: int, only: tuple[str, ...] = ()) -> Tables:
    """Write the first events to their topics, which must not exist, and the last one of each partition.

    Args:
        servers: Address of the broker.
        config: Configuration of the generator.
        events: Number of events of all kinds.
        only: The kinds to write: person, auction, bid. Default: all.

    Returns:
        All rows that were written.

    Raises:
        BrokerError: The broker cannot be reached, or refused an event.
    """
    written = {}
    kinds_written = (
        (PERSONS, _persons, "id"), (AUCTIONS, _auctions, "id"), (BIDS, _bids, "auction"),
    )  # fmt: skip
    for topic, generate, key in kinds_written:
        kind = topic.name.removeprefix("nexmark-")
        if only and kind not in only:
            continue
        pieces = [
            generate(config, first, min(first + _PIECE_EVENTS, events))
            for first in range(0, events, _PIECE_EVENTS)
        ]
        ensure_topics(servers, {topic.name: PARTITIONS})
        feed(servers, topic.name, pieces, key=key)
        last = _last(pieces[-1], config.base_time_ms + events * config.inter_event_delay_us // 1_000)
        _end_partitions(servers, topic.name, last)
        written[kind] = pa.concat_tables([*pieces, *[last] * PARTITIONS])
    return written


def _persons(config: NexmarkConfig, first: int, last: int) -> pa.Table:
    found = generator.persons(config, first, last)
    return found.rename_columns(["id", "name", "city", "state", "date_time"])


def _auctions(config: NexmarkConfig, first: int, last: int) -> pa.Table:
    found = generator.auctions(config, first, last)
    names = ("auction_id", "seller", "category", "initial_bid", "reserve", "opened_ms", "expires_ms")
    columns = [_cents(found[name]) if name in {"initial_bid", "reserve"} else found[name] for name in names]
    return pa.table(columns, ["id", *names[1:5], "date_time", "expires"])


def _bids(config: NexmarkConfig, first: int, last: int) -> pa.Table:
    found = generator.bids(config, first, last)
    events = found["bid_id"].to_numpy()
    hot = draw(config, "hot channel", events) >= 1 / HOT_CHANNELS_RATIO
    channel = draw(config, "channel", events)
    number = np.where(hot, below(len(HOT_CHANNELS), channel), len(HOT_CHANNELS) + below(CHANNELS, channel))
    fillers = below(len(_FILLERS), draw(config, "extra", events))
    columns: dict[str, Any] = {
        "auction": found["auction_id"],
        "bidder": found["bidder"],
        "price": _cents(found["price"]),
        "channel": _CHANNEL_NAMES.take(number),
        "url": _CHANNEL_URLS.take(number),
        "date_time": found["bid_time_ms"],
        "extra": _FILLERS.take(fillers),
    }
    return pa.table(columns)


def _cents(dollars: Any) -> Any:
    return pc.cast(pc.round(pc.multiply(dollars, 100.0)), pa.int64())


def _last(rows: pa.Table, end_ms: int) -> pa.Table:
    """One event of two days later, of a person and an auction that no other event has."""
    row = rows.slice(rows.num_rows - 1).to_pylist()[0]
    later_ms = end_ms + int(LATER.total_seconds() * 1_000)
    ids = dict.fromkeys({"id", "auction", "bidder", "seller"} & row.keys(), 0)
    return pa.Table.from_pylist([row | ids | {"date_time": later_ms}], schema=rows.schema)


def _end_partitions(servers: str, topic: str, last: pa.Table) -> None:
    producer = Producer({**client_login(servers), "log_level": 0})
    (value,) = encode(last, 0)
    for partition in range(PARTITIONS):
        producer.produce(topic, value, partition=partition)
    if producer.flush(30):
        msg = f"topic {topic!r} at {servers} did not take the last event: no window would be complete"
        raise BrokerError(msg)


def _words(seed: int, count: int, sizes: npt.NDArray[np.int64]) -> list[str]:
    random = np.random.default_rng(seed)
    letters = random.choice(_LETTERS, (count, int(sizes.max())))
    return ["".join(row[:size]) for row, size in zip(letters, sizes, strict=True)]


def _channel_urls() -> pa.StringArray:
    count = len(HOT_CHANNELS) + CHANNELS
    parts = [_words(seed, count, np.full(count, 5)) for seed in (1, 2, 3)]
    has_id = np.random.default_rng(4).random(count) < CHANNELS_WITH_ID
    urls = [
        f"https://www.nexmark.com/{'/'.join(each)}/item.htm?query=1"
        + (f"&channel_id={number}" if has_id[number] and number >= len(HOT_CHANNELS) else "")
        for number, each in enumerate(zip(*parts, strict=True))
    ]
    return pa.array(urls)


_CHANNEL_NAMES: Final = pa.array([*HOT_CHANNELS, *(f"channel-{number}" for number in range(CHANNELS))])
_CHANNEL_URLS: Final = _channel_urls()
_FILLER_SIZES: Final = np.random.default_rng(6).integers(
    FILLER_BYTES * 4 // 5, FILLER_BYTES * 6 // 5 + 1, 4_096
)
# Nexmark's filler varies by a fifth around its average.
_FILLERS: Final = pa.array(_words(5, len(_FILLER_SIZES), _FILLER_SIZES))
