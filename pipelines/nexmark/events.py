"""Nexmark's events with all columns that its queries read, and the topics of these events.

``generator`` makes ids, prices and times. Here they get Nexmark's names and its texts: half of all bids come
through one of four hot channels, the others through one of 10,000, most of which are named in the URL; filler
text brings a bid to about 100 bytes, a person to 200 and an auction to 500. Prices are integer cents.

A stream of events has no end, so no watermark would ever complete the last windows. Therefore each partition
ends with one event of two days later.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import cache, partial
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
# On average: Nexmark fills bids of 32 bytes up to 100, persons of 70 to 200, and auctions of 110 to 500.
BID_FILLER, PERSON_FILLER, AUCTION_FILLER = 68, 130, 390
LATER: Final = timedelta(days=2)
PARTITIONS: Final = 2
_PIECE_EVENTS: Final = 500_000
_LETTERS: Final = np.array(list("abcdefghijklmnopqrstuvwxyz"))


def _topic(name: str, schema: str) -> KafkaTopic:
    watermark = bounded_out_of_orderness(timedelta(seconds=4))
    return KafkaTopic(f"nexmark-{name}", schema=schema, event_time="date_time", watermark=watermark)


PERSONS: Final = _topic(
    "person",
    "id BIGINT, name STRING, email_address STRING, credit_card STRING, city STRING, state STRING, "
    "date_time BIGINT, extra STRING",
)
AUCTIONS: Final = _topic(
    "auction",
    "id BIGINT, item_name STRING, description STRING, initial_bid BIGINT, reserve BIGINT, date_time BIGINT, "
    "expires BIGINT, seller BIGINT, category BIGINT, extra STRING",
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
    pick = partial(_pick, config, found["person_id"].to_numpy())
    columns: dict[str, Any] = {
        "id": found["person_id"],
        "name": found["name"],
        "email_address": pick(_email_addresses(), "email address"),
        "credit_card": pick(_cards(), "credit card"),
        "city": found["city"],
        "state": found["state"],
        "date_time": found["joined_ms"],
        "extra": pick(_fillers(7, PERSON_FILLER), "extra"),
    }
    return pa.table(columns)


def _auctions(config: NexmarkConfig, first: int, last: int) -> pa.Table:
    found = generator.auctions(config, first, last)
    pick = partial(_pick, config, found["auction_id"].to_numpy())
    columns: dict[str, Any] = {
        "id": found["auction_id"],
        "item_name": pick(_texts(11, 3, 20), "item name"),
        "description": pick(_texts(13, 3, 100), "description"),
        "initial_bid": _cents(found["initial_bid"]),
        "reserve": _cents(found["reserve"]),
        "date_time": found["opened_ms"],
        "expires": found["expires_ms"],
        "seller": found["seller"],
        "category": found["category"],
        "extra": pick(_fillers(9, AUCTION_FILLER), "extra"),
    }
    return pa.table(columns)


def _bids(config: NexmarkConfig, first: int, last: int) -> pa.Table:
    found = generator.bids(config, first, last)
    events = found["bid_id"].to_numpy()
    hot = draw(config, "hot channel", events) >= 1 / HOT_CHANNELS_RATIO
    channel = draw(config, "channel", events)
    number = np.where(hot, below(len(HOT_CHANNELS), channel), len(HOT_CHANNELS) + below(CHANNELS, channel))
    columns: dict[str, Any] = {
        "auction": found["auction_id"],
        "bidder": found["bidder"],
        "price": _cents(found["price"]),
        "channel": _CHANNEL_NAMES.take(number),
        "url": _CHANNEL_URLS.take(number),
        "date_time": found["bid_time_ms"],
        "extra": _pick(config, events, _fillers(5, BID_FILLER), "extra"),
    }
    return pa.table(columns)


def _pick(config: NexmarkConfig, numbers: Any, texts: pa.StringArray, what: str) -> pa.StringArray:
    return texts.take(below(len(texts), draw(config, what, numbers)))


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
_TEXTS: Final = 4_096


def _fillers(seed: int, average: int) -> pa.StringArray:
    """Texts whose sizes vary by a fifth around their average, as Nexmark's do."""
    return _texts(seed, average * 4 // 5, average * 6 // 5)


@cache  # made when events are, since queries need none
def _texts(seed: int, shortest: int, longest: int) -> pa.StringArray:
    sizes = np.random.default_rng(seed + 1).integers(shortest, longest + 1, _TEXTS)
    return pa.array(_words(seed, _TEXTS, sizes))


@cache
def _email_addresses() -> pa.StringArray:
    names, hosts = _texts(15, 3, 7).to_pylist(), _texts(17, 3, 5).to_pylist()
    return pa.array([f"{name}@{host}.com" for name, host in zip(names, hosts, strict=True)])


@cache
def _cards() -> pa.StringArray:
    numbers = np.random.default_rng(19).integers(0, 10_000, (_TEXTS, 4))
    return pa.array([" ".join(f"{part:04}" for part in parts) for parts in numbers])
