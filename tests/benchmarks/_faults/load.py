"""Load: a burst, a hot key, new keys without end, a reader that stops."""

from __future__ import annotations

import time

from flowcore.kafka.topics import end_offsets
from flowcore.spark.checkpoint.offset_log import committed_offsets
from tests.benchmarks._faults.driver import wait_until
from tests.benchmarks._faults.scenario import BOTH, Scenario
from tests.benchmarks._faults.trial import Trial

__all__ = ["LOAD"]

_HOT = 0.9
_RATE = 100
"""Sales a second of a quiet query."""
_NEW_KEYS = 100_000
_MANY = 100_000_000
"""More shops than there are sales."""
_MOST_AT_ONCE = 50_000
"""Fewer than fit into the queue of a producer."""


def _burst(trial: Trial) -> None:
    """A running query gets ten times its rate for a minute."""
    trial.batch_records = trial.random.choice((1_000, 5_000, 20_000))
    trial.create_topics()
    driver = trial.start()
    _send_at_rate(trial, _RATE, trial.random.randint(5, 20))
    trial.wait_copies(driver=driver)
    _send_at_rate(trial, 10 * _RATE, 60)
    trial.close_windows()
    trial.recover(driver)


def _hot_key(trial: Trial) -> None:
    """Nine of ten sales are of one shop, and so in one partition and one key group."""
    sales = trial.next_sales(20_000, shops=600)
    trial.send_sales({**sale, "shop": "s0"} if trial.random.random() < _HOT else sale for sale in sales)
    trial.close_windows()
    trial.finish()


def _new_keys(trial: Trial) -> None:
    """Each sale is of another shop, and a second of event time has 100,000 of them."""
    trial.batch_records = trial.random.randint(20_000, 80_000)
    trial.create_topics()
    driver = trial.start()
    driver.wait_running()
    _send_at_rate(trial, _NEW_KEYS, 10, shops=_MANY)
    trial.close_windows()
    trial.recover(driver)


def _send_at_rate(trial: Trial, per_second: int, seconds: int, *, shops: int = 6) -> None:
    """Send at a rate, or as fast as the machine can, in event time that is the time of sending."""
    began, sent = time.monotonic(), 0
    begin_ms = trial.next_sales(1)[0]["at"]
    while (elapsed_s := time.monotonic() - began) < seconds:
        count = min(int(elapsed_s * per_second) - sent, _MOST_AT_ONCE)
        if count > 0:
            sales = trial.next_sales(count, shops=shops)
            trial.send_sales(
                {**sale, "at": begin_ms + (sent + each) * 1000 // per_second}
                for each, sale in enumerate(sales)
            )
            sent += count
        time.sleep(0.0 if count == _MOST_AT_ONCE else 0.2)
    trial.notes.append(f"{sent / (time.monotonic() - began):,.0f} sales a second")


def _stopped_reader(trial: Trial) -> None:
    """A reader of the copies does not read: that must not hold the query up, and it misses nothing later."""
    trial.batch_records = 2_000
    trial.send(450)
    driver = trial.start()
    trial.wait_copies(trial.random.randint(1, 300), driver)
    assert trial.reader is not None
    with trial.reader.paused():
        trial.send(20_000)
        trial.close_windows()
        ends = end_offsets(trial.site.servers, trial.sales.source)
        wait_until(
            lambda: driver.ended or committed_offsets(trial.checkpoint).get(trial.sales.source) == ends,
            180, "all sales are read while no one reads the copies", 0.5,
        )  # fmt: skip
    trial.recover(driver)


LOAD = (
    Scenario(
        id="burst", title="10 times the rate of 100 sales a second, for a minute", play=_burst,
        deliveries=BOTH, limit_s=180,
    ),
    Scenario(id="hot-key", title="one of 600 shops has 90 % of the sales", play=_hot_key, deliveries=BOTH),
    Scenario(
        id="new-keys", title="up to 100,000 sales a second for 10 s, each of another shop", play=_new_keys,
        deliveries=BOTH, limit_s=300,
    ),
    Scenario(
        id="reader-stopped", title="a reader of the output stops while 20,000 sales are copied",
        play=_stopped_reader, deliveries=BOTH,
    ),
)  # fmt: skip
