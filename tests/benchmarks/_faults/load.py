"""Load: a burst, a hot key, new keys without end, a reader that stops."""

from __future__ import annotations

from flowcore.kafka.topics import end_offsets
from flowcore.spark.checkpoint.offset_log import committed_offsets
from tests.benchmarks._faults.driver import wait_until
from tests.benchmarks._faults.sales import make_sale
from tests.benchmarks._faults.scenario import BOTH, Scenario
from tests.benchmarks._faults.trial import Trial

__all__ = ["LOAD"]

_HOT = 0.9


def _burst(trial: Trial) -> None:
    """A running query gets a hundred times what it got before, at once."""
    trial.batch_records = 5_000
    trial.send(300)
    driver = trial.start()
    trial.wait_copies(driver=driver)
    trial.send(30_000)
    trial.close_windows()
    trial.recover(driver)


def _hot_key(trial: Trial) -> None:
    """Nine of ten sales are of one shop in each partition."""
    sales = trial.next_sales(20_000)
    trial.send_sales(
        make_sale(sale["id"], shops=2 if trial.random.random() < _HOT else 600) for sale in sales
    )
    trial.close_windows()
    trial.finish()


def _new_keys(trial: Trial) -> None:
    """Each sale is of another shop."""
    trial.send(30_000, shops=60_000)
    trial.close_windows()
    trial.finish()


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
    Scenario(id="burst", title="30,000 sales at once, after 300", play=_burst, deliveries=BOTH, limit_s=180),
    Scenario(id="hot-key", title="two of 600 shops have 90 % of the sales", play=_hot_key, deliveries=BOTH),
    Scenario(id="new-keys", title="30,000 sales of 30,000 shops", play=_new_keys, deliveries=BOTH),
    Scenario(
        id="reader-stopped", title="a reader of the output stops while 20,000 sales are copied",
        play=_stopped_reader, deliveries=BOTH,
    ),
)  # fmt: skip
