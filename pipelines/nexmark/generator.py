"""Generator of persons, auctions and bids of an online auction, after the Nexmark benchmark.

Events are numbered from 0. Each number is one person, one auction or one bid, in fixed proportions (1 : 3 :
46 of every 50). The content of an event depends only on the configuration and its number, which is hashed
instead of using a stateful random source. So any range can be generated at any time, in pieces of any size.

The generator does not know Kafka, Spark or files: ``feed`` writes to a broker, ``history`` writes Parquet.
Times are integer milliseconds since the epoch, UTC; ranges are half-open; prices are dollars in whole cents.

Differences from Nexmark: bids refer only to existing persons and auctions (Nexmark also uses a few future
ones), and an out-of-order bid is one that arrives late (Nexmark shuffles the times within a group). The texts
of Nexmark's events are added by ``events``.

Source:
    Tucker, Tufte, Papadimos, Maier: "NEXMark, a benchmark for queries over data streams", with
    the proportions and ratios of its Beam and Flink versions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flowcore.errors import ConfigurationError

__all__ = [
    "Kind",
    "NexmarkConfig",
    "auctions",
    "below",
    "bids",
    "draw",
    "kinds",
    "live_batches",
    "live_bids",
    "persons",
]

FIRST_PERSON_ID: Final = 1_000
FIRST_AUCTION_ID: Final = 1_000
FIRST_CATEGORY_ID: Final = 10
HOT_STRIDE: Final = 100  # one of a hundred persons or auctions can be hot

FIRST_NAMES: Final = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo", "June")
LAST_NAMES: Final = ("Ash", "Birch", "Cedar", "Elm", "Fir", "Hazel", "Maple", "Oak", "Pine", "Yew")
CITIES: Final = ("Boise", "Kent", "Phoenix", "Portland", "San Diego", "Cheyenne")
STATES: Final = ("ID", "WA", "AZ", "OR", "CA", "WY")
NAMES: Final = tuple(f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES)
# Log-uniform from 1 to 1,000,000. A table is faster than computing powers, and the same on every processor.
PRICES: Final = np.round(10 ** (np.arange(1 << 16) * (6 / (1 << 16))), 2)

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NexmarkConfig:
    """Configuration of the generated events.

    Args:
        seed: Selects one of many event sequences with the same statistics.
        base_time_ms: Time of event 0.
        inter_event_delay_us: Time from one event to the next, > 0.
        person_proportion: Persons in each cycle of events, > 0.
        auction_proportion: Auctions in each cycle, > 0.
        bid_proportion: Bids in each cycle, > 0.
        hot_seller_ratio: 1 - 1/ratio of all auctions belong to the hot seller; 1 means no hot seller.
        hot_auction_ratio: 1 - 1/ratio of all bids are on the hot auction.
        hot_bidder_ratio: 1 - 1/ratio of all bids are from the hot bidder.
        active_persons: Other sellers and bidders are chosen from this many last persons, > 0.
        in_flight_auctions: Other bids are on one of this many last auctions.
        categories: Number of categories, > 0.
        out_of_order_share: Share of bids that arrive late, 0 to 1.
        max_disorder_ms: Longest lateness.
        unlisted_ratio: Share of live bids on auctions that are not in the history, 0 to 1.

    Raises:
        ConfigurationError: A value is outside its range.

    >>> NexmarkConfig(hot_auction_ratio=1).cycle
    50
    """

    seed: int = 1
    base_time_ms: int = 1_767_225_600_000  # 2026-01-01
    inter_event_delay_us: int = 1_000
    person_proportion: int = 1
    auction_proportion: int = 3
    bid_proportion: int = 46
    hot_seller_ratio: int = 4
    hot_auction_ratio: int = 2
    hot_bidder_ratio: int = 4
    active_persons: int = 1_000
    in_flight_auctions: int = 100
    categories: int = 5
    out_of_order_share: float = 0.05
    max_disorder_ms: int = 2_000
    unlisted_ratio: float = 0.01

    def __post_init__(self) -> None:
        least = {"seed": 0, "base_time_ms": 0, "max_disorder_ms": 0}
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if name in {"out_of_order_share", "unlisted_ratio"}:
                if not 0 <= value <= 1:
                    msg = f"{name}={value} is not a share; pass a number from 0 to 1"
                    raise ConfigurationError(msg)
            elif value < least.get(name, 1):
                msg = f"{name}={value} is too small; pass {name} >= {least.get(name, 1)}"
                raise ConfigurationError(msg)

    @property
    def cycle(self) -> int:
        """Number of events after which the kinds repeat."""
        return self.person_proportion + self.auction_proportion + self.bid_proportion


def persons(config: NexmarkConfig, first: int, last: int) -> pa.Table:
    """Return the persons among events ``first`` to ``last - 1``.

    Columns: ``person_id``, ``name``, ``city``, ``state``, ``joined_ms``.
    """
    ordinals, events = _persons(config).between(first, last)
    town = below(len(CITIES), draw(config, "town", events))
    return _table(
        person_id=ordinals + FIRST_PERSON_ID,
        name=_chosen(NAMES, below(len(NAMES), draw(config, "name", events))),
        city=_chosen(CITIES, town),
        state=_chosen(STATES, town),
        joined_ms=_time_ms(config, events),
    )


def auctions(config: NexmarkConfig, first: int, last: int) -> pa.Table:
    """Return the auctions among events ``first`` to ``last - 1``.

    Columns: ``auction_id``, ``seller`` (a person), ``category``, ``initial_bid``, ``reserve``,
    ``opened_ms``, ``expires_ms``.
    """
    ordinals, events = _auctions(config).between(first, last)
    newest = _persons(config).newest_at(events)
    hot = draw(config, "hot seller", events) >= 1 / config.hot_seller_ratio
    recent = _one_of_last(config.active_persons, newest, draw(config, "seller", events))
    seller = np.where(hot, newest // HOT_STRIDE * HOT_STRIDE, recent)
    initial_bid = _price(config, "initial bid", events)
    # With this mean duration, about in_flight_auctions of them are open.
    longest_us = 2 * config.in_flight_auctions * config.cycle * config.inter_event_delay_us
    longest_ms = max(longest_us // config.auction_proportion // 1_000, 1)
    opened_ms = _time_ms(config, events)
    category = below(config.categories, draw(config, "category", events))
    return _table(
        auction_id=ordinals + FIRST_AUCTION_ID,
        seller=seller + FIRST_PERSON_ID,
        category=category + FIRST_CATEGORY_ID,
        initial_bid=initial_bid,
        reserve=np.round(initial_bid + _price(config, "reserve", events), 2),
        opened_ms=opened_ms,
        expires_ms=opened_ms + 1 + below(longest_ms, draw(config, "length", events)),
    )


def bids(config: NexmarkConfig, first: int, last: int) -> pa.Table:
    """Return the bids among events ``first`` to ``last - 1``, in order of arrival.

    Columns: ``bid_id`` (the number of the event), ``auction_id``, ``bidder`` (a person),
    ``price``, ``bid_time_ms`` (up to ``max_disorder_ms`` before its place in the order).
    """
    _, events = _bids(config).between(first, last)
    made = _made_at(config, events)
    newest = _auctions(config).newest_at(made)
    hot = draw(config, "hot auction", events) >= 1 / config.hot_auction_ratio
    recent = _one_of_last(config.in_flight_auctions, newest, draw(config, "auction", events))
    auction = np.where(hot, newest // HOT_STRIDE * HOT_STRIDE, recent)
    return _bid_table(config, events, made, auction)


def live_bids(config: NexmarkConfig, history_events: int, first: int, count: int) -> pa.Table:
    """Return live bids ``first`` to ``first + count - 1``, counted from the end of the history.

    They continue the history's bids. Their auctions are those of the history (hot ones in turn, else any),
    except for a share of ``unlisted_ratio`` on unknown auctions. Columns as in ``bids``.

    Args:
        config: The configuration of the history.
        history_events: Number of events in the history; at least one cycle.
        first: Ordinal of the first live bid, from 0.
        count: Number of bids.
    """
    listed = _auctions(config).before(history_events)
    if listed == 0:
        msg = (
            f"history_events={history_events} hold no auction: there is nothing to bid on; "
            f"pass history_events >= {config.cycle}"
        )
        raise ConfigurationError(msg)
    start = _bids(config).before(history_events) + first
    events = _bids(config).numbers(np.arange(start, start + count, dtype=np.int64))
    made = _made_at(config, events)
    turn = _auctions(config).newest_at(made) // HOT_STRIDE
    hot = draw(config, "hot auction", events) >= 1 / config.hot_auction_ratio
    any_listed = below(listed, draw(config, "auction", events))
    auction = np.where(hot, turn % (-(-listed // HOT_STRIDE)) * HOT_STRIDE, any_listed)
    unlisted = draw(config, "unlisted", events) < config.unlisted_ratio
    beyond = listed + below(config.in_flight_auctions, draw(config, "auction", events))
    return _bid_table(config, events, made, np.where(unlisted, beyond, auction))


def live_batches(
    config: NexmarkConfig, history_events: int, count: int, batch_rows: int = 50_000
) -> Iterator[pa.Table]:
    """Yield the first ``count`` live bids in tables of at most ``batch_rows`` rows."""
    for first in range(0, count, batch_rows):
        yield live_bids(config, history_events, first, min(batch_rows, count - first))


@dataclass(frozen=True, slots=True)
class Kind:
    """The positions of one kind of event in each cycle.

    Attributes:
        cycle: Number of events after which the kinds repeat.
        offset: Position of the first event of this kind in a cycle.
        proportion: Number of events of this kind in each cycle.
    """

    cycle: int
    offset: int
    proportion: int

    def before(self, event: int) -> int:
        """Return the number of events of this kind before an event."""
        cycles, place = divmod(event, self.cycle)
        return cycles * self.proportion + min(max(place - self.offset, 0), self.proportion)

    def newest_at(self, events: Integers) -> Integers:
        """Return the ordinal of the last event of this kind at or before each event."""
        cycles, place = np.divmod(events, self.cycle)
        past: Integers = np.clip(place - self.offset + 1, 0, self.proportion)
        return cycles * self.proportion + past - 1

    def numbers(self, ordinals: Integers) -> Integers:
        """Return the event number of each ordinal of this kind."""
        cycles, place = np.divmod(ordinals, self.proportion)
        return cycles * self.cycle + self.offset + place

    def between(self, first: int, last: int) -> tuple[Integers, Integers]:
        """Return ordinals and numbers of this kind among events ``first`` to ``last - 1``."""
        ordinals = np.arange(self.before(first), self.before(last), dtype=np.int64)
        return ordinals, self.numbers(ordinals)


def kinds(config: NexmarkConfig) -> dict[str, Kind]:
    """Return the kind of event of each table of the history."""
    return {"persons": _persons(config), "auctions": _auctions(config), "bids": _bids(config)}


def _persons(config: NexmarkConfig) -> Kind:
    return Kind(config.cycle, 0, config.person_proportion)


def _auctions(config: NexmarkConfig) -> Kind:
    return Kind(config.cycle, config.person_proportion, config.auction_proportion)


def _bids(config: NexmarkConfig) -> Kind:
    offset = config.person_proportion + config.auction_proportion
    return Kind(config.cycle, offset, config.bid_proportion)


def _made_at(config: NexmarkConfig, events: Integers) -> Integers:
    """Return the event number at which each bid was made: its own, or an earlier one if it is late."""
    most = config.max_disorder_ms * 1_000 // config.inter_event_delay_us
    late = draw(config, "late", events) < config.out_of_order_share
    made = np.where(late, events - below(most + 1, draw(config, "lateness", events)), events)
    # Before the first bid there may be no person and no auction.
    earliest: Integers = np.maximum(made, _bids(config).offset)
    return earliest


def _bid_table(config: NexmarkConfig, events: Integers, made: Integers, auction: Integers) -> pa.Table:
    newest = _persons(config).newest_at(made)
    hot = draw(config, "hot bidder", events) >= 1 / config.hot_bidder_ratio
    recent = _one_of_last(config.active_persons, newest, draw(config, "bidder", events))
    # The second of the hundred, so that hot bidder and hot seller differ.
    bidder = np.where(hot, np.minimum(newest // HOT_STRIDE * HOT_STRIDE + 1, newest), recent)
    return _table(
        bid_id=events,
        auction_id=auction + FIRST_AUCTION_ID,
        bidder=bidder + FIRST_PERSON_ID,
        price=_price(config, "price", events),
        bid_time_ms=_time_ms(config, made),
    )


def _table(**columns: Any) -> pa.Table:
    return pa.table(columns)


def _chosen(words: tuple[str, ...], places: Any) -> pa.StringArray:
    return pa.array(words).take(pa.array(places))


def _time_ms(config: NexmarkConfig, events: Integers) -> Integers:
    return config.base_time_ms + events * config.inter_event_delay_us // 1_000


def _price(config: NexmarkConfig, purpose: str, events: Integers) -> npt.NDArray[np.float64]:
    return PRICES[below(len(PRICES), draw(config, purpose, events))]


def _one_of_last(count: int, newest: Integers, drawn: npt.NDArray[np.float64]) -> Integers:
    return newest - below(np.minimum(newest + 1, count), drawn)


def below(bound: int | Integers, drawn: npt.NDArray[np.float64]) -> Integers:
    """Return an integer from 0 to ``bound - 1`` for each number in [0, 1)."""
    return (drawn * bound).astype(np.int64)


def draw(config: NexmarkConfig, purpose: str, events: Integers) -> npt.NDArray[np.float64]:
    """Return a number in [0, 1) for each event, which depends only on seed and purpose.

    Source: the splitmix64 generator (Steele, Lea, Flood, OOPSLA 2014). Its counter is the event's number,
    its start a hash of seed and purpose.
    """
    name = f"{config.seed} {purpose}".encode()
    start = np.uint64(int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big"))
    bits = events.astype(np.uint64)
    bits *= np.uint64(0x9E3779B97F4A7C15)
    bits += start
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    bits ^= bits >> np.uint64(31)
    bits >>= np.uint64(11)  # a float64 holds 53 bits exactly
    drawn: npt.NDArray[np.float64] = bits.astype(np.float64)
    drawn *= 2.0**-53
    return drawn
