"""A flow that copies a topic to the same name on another broker."""

from __future__ import annotations

import pytest

from flowcore import Flow, KafkaTopic, monotonous
from flowcore.elements import Record, Watermark
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import partition_counts
from flowcore.metrics.history import history_folder, last_progress
from flowcore.serializers import TaggedSerializer
from flowcore.serializers.formats import JsonFormat
from tests.kafka.conftest import Live

pytestmark = pytest.mark.kafka

TAGGED = TaggedSerializer(JsonFormat.of([("id", "BIGINT"), ("at", "BIGINT")]))


def test_topic_is_copied_to_the_same_name_on_another_broker(live: Live) -> None:
    """The copy has more partitions and more records than the source, and each partition gets watermarks."""
    bids = live.topic("bids", schema="id BIGINT, at BIGINT", event_time="at", watermark=monotonous())
    with EmbeddedBroker() as central:
        far = Live(central.bootstrap_servers, live.settings, live.spark)
        copied = KafkaTopic(bids.name, servers=far.servers, elements="tagged", partitions=3)
        flow = Flow("f")
        flow.read("bids", bids).write("copy", copied)
        ids = []
        for start in (1, 3):
            ids += [start, start + 1]
            live.send(bids, *({"id": each, "at": each * 1_000} for each in ids[-2:]), partitions=2)
            live.send(bids, b"bad", partitions=2)
            live.run(flow)

            progress = last_progress(history_folder(live.settings.state_dir, "f"))
            assert progress is not None
            assert progress.switches == ()
            (query,) = progress.queries
            assert [(one.partition, one.lag) for one in query.partitions] == [(0, 0), (1, 0)]
            assert query.dead_letters == 1
        written = far.records(copied)
        dead_letters = far.records(bids.dead_letter)

    elements = [(each.partition, TAGGED.decode(each.value or b"")) for each in written]
    assert sorted(each.value["id"] for _, each in elements if isinstance(each, Record)) == ids
    assert {partition for partition, each in elements if isinstance(each, Watermark)} == {0, 1, 2}
    assert [each.value for each in dead_letters] == [b"bad", b"bad"]
    assert partition_counts(live.servers, [bids.dead_letter]) == {bids.dead_letter: None}
