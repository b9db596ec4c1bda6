"""A topic takes smaller messages than before: the run ends, and the next one writes smaller batches."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from flowcore import Flow
from flowcore.errors import LoweredLimitError
from flowcore.spark.run import limit_watch
from tests.kafka.conftest import Live
from tests.waiting import run_until

pytestmark = pytest.mark.kafka


def _limit(live: Live, topic: str, largest: int) -> None:
    entry = ConfigEntry("max.message.bytes", str(largest), incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": live.servers})
    admin.incremental_alter_configs([changed])[changed].result(30)


def test_run_ends_when_a_topic_takes_smaller_messages(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """A higher limit changes nothing. The next run writes all records by the new limit."""
    monkeypatch.setattr(limit_watch, "_INTERVAL_S", 0.2)
    bids, out = live.topic("bids", schema="id BIGINT NOT NULL"), live.topic("out")
    flow = Flow("lowered")
    flow.read("bids", bids).where("id >= 0").write("out", out)
    live.send(bids, *({"id": number} for number in range(50)))

    def lower(run: Any) -> None:
        run_until(run, lambda: len(live.records(out)) == 50)
        _limit(live, out.name, 2_000_000)
        later = time.monotonic() + 3
        run_until(run, lambda: time.monotonic() > later)
        _limit(live, out.name, 1_000)
        run_until(run, lambda: False)

    with pytest.raises(LoweredLimitError, match=r"at most 1000 bytes, and took \d+ when the run began"):
        live.run(flow, "micro-batch", lower)
    live.send(bids, *({"id": number} for number in range(50, 1_000)))
    live.run(flow, "slice")

    assert sorted(each["id"] for each in live.values(out)) == [*range(1_000)]


def test_refused_transaction_says_that_the_limit_was_lowered(live: Live) -> None:
    """The batch fails before the limits are read again. The next run writes it by the new limit."""
    bids, out = live.topic("bids", schema="id BIGINT NOT NULL"), live.topic("out", delivery="exactly-once")
    flow = Flow("refused")
    flow.read("bids", bids).where("id >= 0").write("out", out)
    live.send(bids, {"id": 0})

    def lower(run: Any) -> None:
        run_until(run, lambda: len(live.values(out)) == 1)
        _limit(live, out.name, 1_000)
        live.send(bids, *({"id": number} for number in range(1, 500)))
        run_until(run, lambda: False)

    with pytest.raises(LoweredLimitError, match="at most 1000 bytes"):
        live.run(flow, "micro-batch", lower)
    live.run(flow, "slice")

    assert sorted(each["id"] for each in live.values(out)) == [*range(500)]
