"""The auction house is the same for every partition of its events, and has the configured shares."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.errors import ConfigurationError
from pipelines.nexmark.generator import (
    NexmarkConfig,
    auctions,
    bids,
    live_batches,
    live_bids,
    persons,
)

Generate = Callable[[NexmarkConfig, int, int], pa.Table]

configs = st.builds(
    NexmarkConfig,
    seed=st.integers(0, 2**64),
    inter_event_delay_us=st.integers(1, 5_000),
    person_proportion=st.integers(1, 4),
    auction_proportion=st.integers(1, 7),
    bid_proportion=st.integers(1, 50),
    hot_seller_ratio=st.integers(1, 5),
    hot_auction_ratio=st.integers(1, 5),
    hot_bidder_ratio=st.integers(1, 5),
    active_persons=st.integers(1, 1_000),
    in_flight_auctions=st.integers(1, 300),
    categories=st.integers(1, 20),
    out_of_order_share=st.floats(0, 1),
    max_disorder_ms=st.integers(0, 4_000),
    unlisted_ratio=st.floats(0, 1),
)
seeds = st.integers(0, 2**64)
numbers = st.integers(0, 5_000)
laws = settings(deadline=None)  # how long an example takes says more of the machine
kinds = pytest.mark.parametrize("generate", [persons, auctions, bids], ids=["persons", "auctions", "bids"])


@kinds
@given(configs, st.tuples(numbers, numbers, numbers).map(sorted))
@laws
def test_pieces_of_a_range_fit_together(generate: Generate, config: NexmarkConfig, cuts: list[int]) -> None:
    """Two separately generated halves equal the whole."""
    first, middle, last = cuts

    halves = pa.concat_tables([generate(config, first, middle), generate(config, middle, last)])

    assert halves.equals(generate(config, first, last))


@given(configs, st.integers(400, 5_000), st.integers(0, 300), st.integers(1, 70))
@laws
def test_live_batches_are_pieces_of_one_stream(
    config: NexmarkConfig, history_events: int, count: int, batch_rows: int
) -> None:
    """The size of a batch does not change any bid."""
    whole = live_bids(config, history_events, 0, count)

    batches = list(live_batches(config, history_events, count, batch_rows))

    assert all(batch.num_rows <= batch_rows for batch in batches)
    assert pa.concat_tables([whole.slice(0, 0), *batches]).equals(whole)


@given(configs, numbers, numbers)
@laws
def test_each_event_is_one_person_auction_or_bid(config: NexmarkConfig, start: int, count: int) -> None:
    """For all proportions no event is missing or counted twice."""
    made = [generate(config, start, start + count) for generate in (persons, auctions, bids)]

    assert sum(table.num_rows for table in made) == count


def test_proportions_are_nexmarks() -> None:
    """Of each 50 events one is a person, three are auctions, and 46 are bids."""
    config = NexmarkConfig()

    rows = [generate(config, 0, 50_000).num_rows for generate in (persons, auctions, bids)]

    assert rows == [1_000, 3_000, 46_000]


def test_ids_follow_each_other() -> None:
    """Persons and auctions are numbered without a gap; a bid has its event's number."""
    config = NexmarkConfig()

    assert persons(config, 0, 500)["person_id"].to_pylist() == list(range(1_000, 1_010))
    assert auctions(config, 0, 500)["auction_id"].to_pylist() == list(range(1_000, 1_030))
    assert bids(config, 0, 100)["bid_id"].to_pylist() == [*range(4, 50), *range(54, 100)]


@given(configs)
@laws
def test_events_refer_to_existing_persons_and_auctions(config: NexmarkConfig) -> None:
    """Sellers and bidders exist, and auctions are open when a bid refers to them."""
    joined = column(persons(config, 0, 3_000), "joined_ms")
    sold = auctions(config, 0, 3_000)
    opened = column(sold, "opened_ms")
    made = bids(config, 0, 3_000)

    assert np.all(joined[column(sold, "seller") - 1_000] <= opened)
    assert np.all(joined[column(made, "bidder") - 1_000] <= column(made, "bid_time_ms"))
    assert np.all(opened[column(made, "auction_id") - 1_000] <= column(made, "bid_time_ms"))


@given(configs)
@laws
def test_disorder_is_bounded(config: NexmarkConfig) -> None:
    """No bid lags the latest earlier one by more than the configured limit."""
    times_ms = column(bids(config, 0, 5_000), "bid_time_ms")

    behind_ms = np.maximum.accumulate(times_ms) - times_ms

    assert behind_ms.max(initial=0) <= config.max_disorder_ms


@given(seeds)
@settings(laws, max_examples=25)
def test_disorder_has_its_share(seed: int) -> None:
    """As configured, about one bid in five is late, by up to the full allowance."""
    config = NexmarkConfig(seed=seed, out_of_order_share=0.2, max_disorder_ms=1_000)
    made = bids(config, 10_000, 60_000)

    late_ms = config.base_time_ms + column(made, "bid_id") - column(made, "bid_time_ms")

    assert near(np.mean(late_ms > 0), 0.2, made.num_rows)
    assert 950 < late_ms.max() <= 1_000


@given(seeds, st.integers(1, 6))
@settings(laws, max_examples=25)
def test_hot_items_have_their_shares(seed: int, ratio: int) -> None:
    """All but 1/ratio of the auctions or bids are on the hot item; the others rarely are."""
    config = NexmarkConfig(
        seed=seed,
        hot_seller_ratio=ratio,
        hot_auction_ratio=ratio,
        hot_bidder_ratio=ratio,
        out_of_order_share=0,
    )
    first, last = 500_000, 550_000
    sold, made = auctions(config, first, last), bids(config, first, last)
    newest_auction = column(made, "bid_id") // 50 * 3 + 2
    newest_person = column(made, "bid_id") // 50
    hot_auction = newest_auction // 100 * 100 + 1_000
    hot_bidder = np.minimum(newest_person // 100 * 100 + 1, newest_person) + 1_000
    hot_seller = (column(sold, "auction_id") - 1_000) // 3 // 100 * 100 + 1_000

    # What is not hot falls evenly on the last 100 auctions or 1,000 persons, the hot one among
    # them for most of its time.
    hot, cold = 1 - 1 / ratio, 1 / ratio
    on_auction = np.mean(column(made, "auction_id") == hot_auction)
    assert hot - 0.02 < on_auction < hot + cold / 100 + 0.02
    assert near(np.mean(column(made, "bidder") == hot_bidder), hot + cold / 1_000, 46_000)
    assert near(np.mean(column(sold, "seller") == hot_seller), hot + cold / 1_000, 3_000)


@given(seeds)
@settings(laws, max_examples=25)
def test_prices_are_whole_cents_spread_over_six_decades(seed: int) -> None:
    """Each power of ten from 1 to 1,000,000 has a sixth of the prices."""
    prices = column(bids(NexmarkConfig(seed=seed), 0, 20_000), "price")

    assert np.array_equal(np.round(prices, 2), prices)
    shares, _ = np.histogram(np.log10(prices), bins=range(7))
    assert shares.sum() == len(prices)
    assert all(near(share / len(prices), 1 / 6, len(prices)) for share in shares)


@given(seeds)
@settings(laws, max_examples=25)
def test_live_bids_refer_to_the_history_except_for_their_share(seed: int) -> None:
    """Live bids follow the history, and the configured share refers to new auctions."""
    config = NexmarkConfig(seed=seed, unlisted_ratio=0.1)
    history_events = 10_030
    listed = column(auctions(config, 0, history_events), "auction_id")

    live = live_bids(config, history_events, 0, 20_000)

    assert column(live, "bid_id").min() == history_events
    assert len(np.unique(column(live, "bid_id"))) == 20_000
    unlisted = ~np.isin(column(live, "auction_id"), listed)
    assert near(np.mean(unlisted), 0.1, 20_000)
    hot = column(live, "auction_id") % 100 == 0
    assert near(np.mean(hot[~unlisted]), 0.5 + 0.5 * 7 / len(listed), 18_000)


def test_auctions_and_bids_share_one_column() -> None:
    """A join on the auction's id leaves no name ambiguous."""
    config = NexmarkConfig()

    shared = set(auctions(config, 0, 50).column_names) & set(bids(config, 0, 50).column_names)

    assert shared == {"auction_id"}


@pytest.mark.parametrize(
    ("generate", "digest"),
    [(persons, "da8ec8eaba023d93"), (auctions, "d2c7a97c964954b9"), (bids, "af03adaadefd73b8")],
    ids=["persons", "auctions", "bids"],
)
def test_the_default_house_never_changes(generate: Generate, digest: str) -> None:
    """Changing any row requires a new GENERATOR_VERSION and new digests here."""
    rows = generate(NexmarkConfig(), 0, 20_000).to_pylist()

    assert hashlib.sha256(repr(rows).encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bid_proportion": 0}, r"bid_proportion=0 is too small; pass bid_proportion >= 1"),
        ({"max_disorder_ms": -1}, r"max_disorder_ms=-1 is too small; pass max_disorder_ms >= 0"),
        ({"unlisted_ratio": 1.5}, r"unlisted_ratio=1.5 is not a share; pass a number from 0 to 1"),
    ],
    ids=["no-bids", "negative-disorder", "share-above-one"],
)
def test_config_refuses_impossible_values(settings: dict[str, float], message: str) -> None:
    """The message names the setting, its value and its range."""
    with pytest.raises(ConfigurationError, match=message):
        NexmarkConfig(**settings)  # type: ignore[arg-type]


def test_live_bids_refuse_an_empty_history() -> None:
    """Without an auction there is nothing to bid on."""
    with pytest.raises(ConfigurationError, match=r"history_events=1 hold no auction.*>= 50"):
        live_bids(NexmarkConfig(), 1, 0, 10)


def column(table: pa.Table, name: str) -> np.ndarray:
    return table[name].to_numpy()


def near(share: float | np.floating, expected: float, draws: int) -> bool:
    """Return whether a share of so many draws is within six standard deviations of its expectation."""
    deviation = (max(expected * (1 - expected), 1 / draws) / draws) ** 0.5
    return bool(abs(share - expected) <= 6 * deviation)
