"""With exactly-once delivery, a reader of committed records sees each record once, whatever is killed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from flowcore import Flow, KafkaTopic, Tumbling, monotonous
from flowcore.delivery import ledger_topic
from flowcore.errors import DeliveryError
from flowcore.kafka.topics import end_offsets, grow_topic
from flowcore.planner import plan_flow
from flowcore.spark.run.flow import open_context
from flowcore.spark.run.live_stage import LiveRun
from tests.kafka.committed_reader import CommittedReader
from tests.kafka.driver import driver_settings, run_to_failpoint
from tests.waiting import run_until, wait_until

pytestmark = pytest.mark.kafka

Live = Any
SALE = "id BIGINT NOT NULL, shop STRING"


def copy(source: str, out: str) -> Flow:
    """A flow that emits what it reads, by shop.

    The name of a flow names its ledger too, so that each test has its own.
    """
    flow = Flow(out)
    sales = flow.read("sales", KafkaTopic(source, schema=SALE))
    sales.write("out", KafkaTopic(out, delivery="exactly-once"), key="shop")
    return flow


def drive(servers: str, state: str, source: str, out: str) -> None:
    """Run a slice; slots are written one after the other."""
    settings = driver_settings(servers, state, **{"spark.master": "local[1]"})
    plan = plan_flow(copy(source, out), "slice", settings)
    with open_context(plan, settings) as context, LiveRun(plan, context) as run:
        run.wait(100)


@pytest.mark.thorough
def test_slice_writes_each_record_once_through_kills(live: Live) -> None:
    """Killed in a transaction after another slot's commit, and before Spark's commit of a batch."""
    source, out = live.topic("sales"), live.topic("out")
    live.send(source, *({"id": each, "shop": f"s{each % 6}"} for each in range(80)), partitions=2)
    live.send(out, partitions=3)
    with CommittedReader(live.servers, out.name) as reader:
        for failpoint in ("transaction-rows:2", "batch-written:1"):
            run_to_failpoint(drive, live, source.name, out.name, failpoint=failpoint)
        transactions = []

        def until_end(run: LiveRun) -> None:
            assert run.wait(180)
            transactions.append(run.progress()[0].open_transactions)

        live.run(copy(source.name, out.name), until=until_end)
        records = live.records(out)
        reader.wait_for(len(records))

    assert sorted(each["id"] for each in reader.values) == list(range(80))
    assert transactions == [0]
    assert len({record.id for record in records}) == len(records) == 80
    for shop in range(6):
        found = [each["id"] for each in reader.values if each["shop"] == f"s{shop}"]
        assert found == list(range(shop, 80, 6))


def test_repeated_batch_writes_nothing_to_any_output(live: Live) -> None:
    """Dead letters, side outputs and results of windows are in the transactions of their query.

    A partition that was added to the source meanwhile holds the watermark after this batch.
    """
    source = live.topic("sales", schema=f"{SALE}, at BIGINT", event_time="at", watermark=monotonous())
    outputs = [live.topic(name) for name in ("sums", "late", "copies")]
    sums, late, copies = outputs
    flow = Flow(sums.name)
    sales = flow.read("sales", source)
    windows = sales.window(Tumbling(10), by="shop", late="side-output").aggregate(ids="sum(id)")
    windows.write("sums", replace(sums, delivery="exactly-once"))
    windows.late.write("late", late)
    sales.map(dict, schema=f"{SALE}, at BIGINT").write("copies", copies)

    def everything() -> dict[str, list[Any]]:
        return {name: live.records(name) for name in (*(each.name for each in outputs), source.dead_letter)}

    rows = [{"id": each, "shop": "ab"[each % 2], "at": each * 1000} for each in range(25)]
    live.send(source, *rows, b"bad", partitions=1)
    live.run(flow, "micro-batch", _wait_for_a_dead_letter)
    live.send(source, {"id": 1, "shop": "a", "at": 1}, b"worse", {"id": 90, "shop": "a", "at": 90_000})
    live.run(flow)
    found = everything()

    live.forget_last_batch(flow.name, "sales-batches")
    grow_topic(live.servers, source.name, 2)
    live.run(flow)

    assert everything() == found
    assert [len(found[topic.name]) for topic in outputs] == [6, 1, 27]
    assert [record.value for record in live.records(source.dead_letter)] == [b"bad", b"worse"]

    live.send(source, {"id": 91, "shop": "b", "at": 200_000})
    live.run(flow)
    assert [len(live.records(topic)) for topic in outputs] == [6, 1, 28]


def test_repetition_with_other_records_stops_until_it_is_asked_for(live: Live) -> None:
    """Nothing is written, also by a slot that has not written; the error is typed and names the setting."""
    live.settings = replace(live.settings, shuffle_partitions=2)
    source, out = live.topic("sales", schema=SALE), live.topic("out")
    shops = {_slot(live, out, shop): shop for shop in "abcdefghijkl"}
    live.send(source, *({"id": each, "shop": shops[each % 2]} for each in range(6)))
    live.run(copy(source.name, out.name))
    live.forget_last_batch(out.name, "sales-batches")
    _forget_entries(live, out, slot=1)

    flow = Flow(out.name)
    changed = flow.read("sales", source).where("id > 0")
    changed.write("out", replace(out, delivery="exactly-once"), key="shop")

    with pytest.raises(DeliveryError, match=r"repetition has 2 records: .*repeat-batch=sales-batches:0$"):
        live.run(flow)
    assert len(live.records(out)) == 6
    live.settings = replace(live.settings, repeat_batch=("sales-batches", 0))
    live.run(flow)
    live.send(source, {"id": 6, "shop": "a"})
    live.run(flow)

    found = sorted(record.json["id"] for record in live.records(out))
    assert found == sorted([*range(6), *range(1, 6), 6])


def _slot(live: Live, out: KafkaTopic, shop: str) -> int:
    """Which of two slots writes the records of a shop."""
    found: int = live.spark.sql(f"SELECT pmod(xxhash64('{out.name}', '{shop}'), 2)").first()[0]
    return found


def _forget_entries(live: Live, out: KafkaTopic, slot: int) -> None:
    """Remove the entries of a slot from the ledger of `copy`."""
    admin = AdminClient({"bootstrap.servers": live.servers})
    topic = ledger_topic(out.name, "sales-batches")
    policy = ConfigEntry("cleanup.policy", "compact,delete", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[policy])
    place = TopicPartition(topic, slot, end_offsets(live.servers, topic)[slot])
    for future in admin.incremental_alter_configs([changed]).values():
        future.result(60)

    def are_removed() -> bool:
        (removed,) = admin.delete_records([place]).values()
        error = removed.exception(60)
        if error is None or error.args[0].code() == KafkaError.POLICY_VIOLATION:
            return error is None  # the leader may not know the new policy yet
        raise error

    wait_until(are_removed, "the entries are removed")


def test_flow_whose_state_is_gone_does_not_write_again(live: Live) -> None:
    """Its ledger says that it has written; more slots than before do not hide that."""
    source, out = live.topic("sales", schema=SALE), live.topic("out")
    live.send(source, *({"id": each, "shop": f"s{each}"} for each in range(6)))
    live.settings = replace(live.settings, shuffle_partitions=2)
    live.run(copy(source.name, out.name))
    first = live.records(out)
    shutil.rmtree(live.settings.state_dir)
    live.settings = replace(live.settings, shuffle_partitions=4)

    for _ in range(2):
        with pytest.raises(DeliveryError, match=r"bring .* back.*repeat-batch=sales-batches:0$"):
            live.run(copy(source.name, out.name))
        assert live.records(out) == first

    live.settings = replace(live.settings, repeat_batch=("sales-batches", 0))
    live.run(copy(source.name, out.name))
    live.settings = replace(live.settings, repeat_batch=None)
    live.send(source, {"id": 6, "shop": "s6"})
    live.run(copy(source.name, out.name))
    found = sorted(record.json["id"] for record in live.records(out))
    assert found == sorted([*range(6), *range(7)])


def test_old_copy_of_a_checkpoint_continues_if_it_is_asked_for(live: Live) -> None:
    """The ledger has begun again since the copy was made, and has later batches."""
    source, out = live.topic("sales", schema=SALE), live.topic("out")

    def write(*numbers: int, asks_for: int | None = None) -> None:
        live.send(source, *({"id": each, "shop": "a"} for each in numbers))
        asked = None if asks_for is None else ("sales-batches", asks_for)
        live.settings = replace(live.settings, repeat_batch=asked)
        live.run(copy(source.name, out.name))

    write(0)
    kept = live.settings.state_dir.with_name("kept")
    shutil.copytree(live.settings.state_dir, kept)
    write(1, asks_for=1)
    write(2)
    shutil.rmtree(live.settings.state_dir)
    shutil.copytree(kept, live.settings.state_dir)

    with pytest.raises(DeliveryError, match=r"the checkpoint is older: .*repeat-batch=sales-batches:1$"):
        write()
    write(asks_for=1)
    write(3)

    found = sorted(record.json["id"] for record in live.records(out))
    assert found == [0, 1, 1, 2, 2, 3]


def _wait_for_a_dead_letter(run: LiveRun) -> None:
    run_until(run, lambda: run.progress()[0].dead_letters)
    assert run.progress()[0].dead_letters == 1
