"""Faults of the broker and of topics."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from flowcore.delivery import ledger_topic
from flowcore.errors import DeliveryError, LostRecordsError, StateError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import ensure_topics, grow_topic, identify_topics
from flowcore.spark.run.lost_records import skip_lost_records
from tests.benchmarks._faults.driver import wait_until
from tests.benchmarks._faults.pauses import choose_pause
from tests.benchmarks._faults.scenario import BOTH, Scenario
from tests.benchmarks._faults.storage import require_outage
from tests.benchmarks._faults.trial import CLOSING, Trial
from tests.benchmarks._faults.verify import read_ledger

__all__ = ["BROKER_FAULTS", "broker_of", "kill_broker"]

_FEWEST = 150
_TIMEOUT_S = 30.0


def _restart(
    failpoint: str | None, stop: Callable[[EmbeddedBroker], None], least_s: float, most_s: float
) -> Callable[[Trial], None]:
    """Stop the broker, at a fail-point or at a random moment, and start it again."""

    def play(trial: Trial) -> None:
        broker = broker_of(trial)
        trial.send(450)
        chosen = failpoint and f"{failpoint}:{trial.random.randint(1, 2)}:stop"
        driver = trial.start(chosen)
        if chosen is None:
            trial.wait_copies(trial.random.randint(1, 300), driver)
        else:
            driver.wait_failpoint()
        stop(broker)
        away_s = trial.random.uniform(least_s, most_s)
        trial.notes.append(f"{away_s:.0f} s away")
        driver.resume_workers()
        time.sleep(away_s)
        broker.start()
        trial.send(300)
        trial.close_windows()
        trial.recover(driver)

    return play


def _throttled(trial: Trial) -> None:
    """The broker gets a tenth of its time, so that every answer of it is late."""
    broker = broker_of(trial)
    trial.send(450)
    driver = trial.start()
    trial.wait_copies(1, driver)
    (jvm,) = _children(broker)
    for _ in range(40):
        os.kill(jvm, signal.SIGSTOP)
        time.sleep(trial.random.uniform(0.1, 0.8))
        os.kill(jvm, signal.SIGCONT)
        time.sleep(0.05)
    trial.send(300)
    trial.close_windows()
    trial.recover(driver)


def _recreated(trial: Trial) -> None:
    """The start is refused; after the command of the error the flow reads the new topic from its start."""
    trial.send(600)
    trial.close_windows()
    trial.finish()
    trial.sent.uncounted |= {sale["id"] for _, sale in trial.sent.sales if sale["id"] >= CLOSING}
    topic = trial.sales.source
    before = identify_topics(trial.site.servers, [topic])[topic]
    _delete_topic(trial, topic)
    ensure_topics(trial.site.servers, {topic: 2})
    trial.notes.append(f"id {before and before.id}")
    trial.send(trial.random.randint(100, 900))
    trial.close_windows()
    error = trial.expect_refusal(StateError, "was deleted and created again")
    subprocess.run(shlex.split(error.partition("after the command: ")[2]), check=True)
    trial.finish()


def _grown(trial: Trial) -> None:
    """A running query takes up partitions that are added to its source.

    They are added when all sales are copied, since Kafka does not keep the order of a key that moves.
    """
    trial.send(trial.random.randint(_FEWEST, 600))
    driver = trial.start()
    trial.wait_copies(driver=driver)
    partitions = trial.random.randint(3, 5)
    trial.notes.append(f"{partitions} partitions")
    grow_topic(trial.site.servers, trial.sales.source, partitions)
    trial.send_sales(trial.next_sales(trial.random.randint(_FEWEST, 600)), partitions)
    trial.close_windows(partitions)
    trial.recover(driver)


def _expired(trial: Trial) -> None:
    """The topic removes records that were not read: refused, and on demand continued and listed."""
    trial.send(600)
    trial.close_windows()
    trial.finish()
    offsets = _ends(trial)
    trial.send(600)
    trial.close_windows()
    lost = {partition: end + trial.random.randint(1, 250) for partition, end in offsets.items()}
    places = [TopicPartition(trial.sales.source, partition, offset) for partition, offset in lost.items()]
    admin = AdminClient({"bootstrap.servers": trial.site.servers})
    for future in admin.delete_records(places).values():
        future.result(_TIMEOUT_S)
    for partition, offset in lost.items():
        mine = [sale["id"] for place, sale in trial.sent.sales if place == partition]
        trial.sent.lost |= {*mine[offsets[partition] : offset]}
    trial.expect_refusal(LostRecordsError, "--skip-lost")
    plan, settings = trial.plan()
    skipped = sum(each.end - each.first for each in skip_lost_records(plan, settings))
    if skipped != len(trial.sent.lost):
        trial.problems.append(f"N1: {skipped} records are listed as lost, not {len(trial.sent.lost)}")
    trial.finish()


def _paused(trial: Trial) -> None:
    """The broker is stopped with SIGSTOP past a time-out, and goes on: its clock has jumped then."""
    (jvm,) = _children(broker_of(trial))
    trial.send(600)
    trial.close_windows()
    driver = trial.start()
    trial.wait_copies(trial.random.randint(1, 300), driver)
    name, seconds = choose_pause(trial.seed, trial.random)
    trial.notes.append(f"{seconds:.0f} s, past {name}")
    os.kill(jvm, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(jvm, signal.SIGCONT)
    trial.recover(driver)


def _ledger_deleted(trial: Trial) -> None:
    """The start is refused; with the setting that the error names, the ledger begins anew."""
    trial.send(600)
    trial.finish()
    trial.lost_ledger += read_ledger(trial)
    _delete_topic(trial, ledger_topic(trial.sales.flow, trial.checkpoint.name))
    trial.send(trial.random.randint(1, 600))
    trial.close_windows()
    error = trial.expect_refusal(DeliveryError, "has no entry: records may be missing")
    (batch,) = re.findall(r"delivery\.repeat-batch=([\w-]+:\d+)", error)
    trial.finish(**{"delivery.repeat-batch": batch})
    trial.send(100)
    trial.close_windows()
    trial.finish()


def _delete_topic(trial: Trial, topic: str) -> None:
    servers = trial.site.servers
    admin = AdminClient({"bootstrap.servers": servers})  # without it, its futures have no result
    admin.delete_topics([topic])[topic].result(_TIMEOUT_S)
    wait_until(lambda: identify_topics(servers, [topic])[topic] is None, 30, f"{topic} is deleted")


def _smaller(trial: Trial) -> None:
    """The output topics take smaller messages from a random moment on; each record still fits."""
    trial.send(450)
    driver = trial.start()
    trial.wait_copies(trial.random.randint(1, 300), driver)
    admin = AdminClient({"bootstrap.servers": trial.site.servers})
    largest = trial.random.randint(600, 1_500)
    trial.notes.append(f"max.message.bytes={largest}")
    entry = ConfigEntry("max.message.bytes", str(largest), incremental_operation=AlterConfigOpType.SET)
    changed = [
        ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        for topic in trial.sales.outputs.values()
    ]
    for future in admin.incremental_alter_configs(changed).values():
        future.result(_TIMEOUT_S)
    trial.send(300)
    trial.close_windows()
    trial.recover(driver)
    if driver.error:
        require_outage(trial, driver)


def _ends(trial: Trial) -> dict[int, int]:
    sent = [partition for partition, _ in trial.sent.sales]
    return {partition: sent.count(partition) for partition in sorted({*sent})}


def broker_of(trial: Trial) -> EmbeddedBroker:
    """The broker that a trial may break."""
    assert trial.site.broker is not None
    return trial.site.broker


def _children(broker: EmbeddedBroker) -> list[int]:
    assert broker._process is not None
    pid = broker._process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def kill_broker(broker: EmbeddedBroker) -> None:
    """End a broker as a power failure would."""
    (jvm,) = _children(broker)
    os.kill(jvm, signal.SIGKILL)
    broker.stop()


BROKER_FAULTS = (
    Scenario(
        id="broker-restart", title="clean stop of the broker, 1 to 10 s",
        play=_restart(None, EmbeddedBroker.stop, 1, 10), own_broker=True, deliveries=BOTH, limit_s=180,
    ),
    Scenario(
        id="broker-killed-in-transaction", title="kill -9 of the broker in the middle of a transaction",
        play=_restart("transaction-rows", kill_broker, 0, 5), own_broker=True, limit_s=180,
    ),
    Scenario(
        id="coordinator-restart-at-commit", title="restart of the coordinator while a transaction commits",
        play=_restart("transaction-commit-0", EmbeddedBroker.stop, 0, 5), own_broker=True, limit_s=180,
    ),
    Scenario(
        id="broker-outage", title="two minutes without a broker",
        play=_restart(None, kill_broker, 120, 125), own_broker=True, deliveries=BOTH, limit_s=180,
    ),
    Scenario(
        id="broker-throttled", title="a broker that gets a tenth of its time", play=_throttled,
        own_broker=True, deliveries=BOTH, limit_s=180,
    ),
    Scenario(
        id="broker-paused", title="SIGSTOP of the broker past a time-out: 30, 120 or 300 s", play=_paused,
        own_broker=True, deliveries=BOTH, limit_s=180,
    ),
    Scenario(
        id="ledger-deleted", title="the ledger is deleted while the flow is down", play=_ledger_deleted,
    ),
    Scenario(
        id="topic-recreated", title="the source topic is deleted and created again", play=_recreated,
    ),
    Scenario(
        id="partitions-added", title="a partition is added to the source of a running query", play=_grown,
        deliveries=BOTH, limit_s=180,
    ),
    Scenario(
        id="message-limit-lowered", title="the output topics take smaller messages while a query runs",
        play=_smaller, deliveries=BOTH, limit_s=180,
    ),
    Scenario(
        id="retention-passed", title="the source removes records that were not read", play=_expired,
        deliveries=BOTH, quick="exactly-once",
    ),
)  # fmt: skip
