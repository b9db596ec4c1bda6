"""A query resumes from a checkpoint that its plan can read and refuses any other checkpoint."""

import json
import logging
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from flowcore import Flow, KafkaTopic, Stream, Tumbling, monotonous
from flowcore.errors import DamagedCheckpointError, StateError
from flowcore.kafka.topics import partition_counts
from tests.sampling import sample

pytestmark = pytest.mark.kafka

Live = Any
SALE = "id BIGINT, shop STRING, price DOUBLE"


@pytest.fixture
def started(live: Live) -> Live:
    """A query `top` with a checkpoint over three sales."""
    live.bids, live.top = live.topic("bids", schema=SALE), live.topic("top")
    live.send(live.bids, *({"id": i, "shop": "ab"[i % 2], "price": float(i)} for i in range(3)))
    live.run(_flow(live))
    live.checkpoint = live.settings.state_dir / "f" / "checkpoints" / "top"
    live.record = live.checkpoint.with_name("top.plan.json")
    return live


def _flow(
    live: Live, change: Callable[[Stream], Stream] | None = None, source: KafkaTopic | None = None,
    sink: KafkaTopic | None = None,
) -> Flow:  # fmt: skip
    flow = Flow("f")
    bids = flow.read("bids", source or live.bids)
    top = change(bids) if change else bids.aggregate(by="shop", top="max(price)")
    top.write("top", sink or live.top, key="shop")
    return flow


def _tops(live: Live) -> dict[str, float]:
    return {value["shop"]: value["top"] for value in live.values(live.top)}


def _everything(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "spark.log" and ".lease." not in path.name
    }


def _first(_: object, values: Iterable[Mapping[str, int]]) -> Iterator[dict[str, int]]:
    yield from ({"n": value["n"]} for value in values)


CHANGES: dict[str, tuple[Callable[[Stream], Stream], str]] = {
    "function": (lambda s: s.aggregate(by="shop", top="min(price)"), r"kept max\(price\).*now min\(price\)"),
    "one-more": (lambda s: s.aggregate(by="shop", top="max(price)", n="count(*)"), r"now .*count\(\*\)"),
    "key": (lambda s: s.select("id as shop", "price").aggregate(by=["shop", "price"]), r"by shop, price"),
    "type": (
        lambda s: s.with_columns(price="cast(price as bigint)").aggregate(by="shop", top="max(price)"),
        r"types of its state were .*double.*and now .*bigint",
    ),
    "dataframe-function": (
        lambda s: s.apply(lambda frame: frame.dropDuplicates(["shop"])),
        r"nothing is kept",
    ),
}


def test_query_with_different_state_is_refused(started: Live) -> None:
    """The query is refused before it writes a file or creates a topic; the error lists the options."""
    choices = (
        str(started.checkpoint), "go back to the flow", "another state.dir", "another name for 'top'",
    )  # fmt: skip
    before = _everything(started.settings.state_dir)
    for other, expected_error in CHANGES.values():
        with pytest.raises(StateError, match=expected_error) as refused:
            started.run(_flow(started, other, sink=started.topic("nowhere")))

        assert all(choice in str(refused.value) for choice in choices)
        assert _everything(started.settings.state_dir) == before

    started.send(started.bids, {"id": 9, "shop": "a", "price": 90.0})
    started.run(_flow(started))

    assert _tops(started) == {"a": 90.0, "b": 1.0}


def test_key_of_another_type_is_refused_before_the_query_starts(live: Live) -> None:
    """Its hash is another one, so that the groups of before would not be found."""
    bids, top = live.topic("bids", schema=SALE), live.topic("top")

    def flow(schema: str) -> Flow:
        flow = Flow("f")
        sales = flow.read("bids", replace(bids, schema=schema))
        kept = sales.aggregate(by="id", top="max(price)", ttl=timedelta(days=1), name="kept")
        kept.write("top", top, key="id")
        return flow

    live.send(bids, {"id": 1, "shop": "a", "price": 1.0})
    live.run(flow(SALE))
    before = _everything(live.settings.state_dir)

    with pytest.raises(StateError, match=r"key of operator 'kept' was of int64, and now int32.*start anew"):
        live.run(flow(SALE.replace("BIGINT", "INT")))

    assert _everything(live.settings.state_dir) == before


@pytest.mark.parametrize("then", sample([False, True], False))
def test_argument_of_another_type_is_refused_before_the_query_starts(live: Live, then: bool) -> None:
    """The number of distinct values has one type, whatever the values are."""
    bids, top = live.topic("bids", schema=SALE, watermark=monotonous()), live.topic("top")
    more: dict[str, Any] = {"then": _first, "schema": "n BIGINT"} if then else {}

    def flow(schema: str) -> Flow:
        flow = Flow("f")
        windows = flow.read("bids", replace(bids, schema=schema)).window(Tumbling(60), by="shop", name="kept")
        windows.aggregate(n="count(distinct id)", **more).write("top", top, key="shop")
        return flow

    live.send(bids, {"id": 1, "shop": "a", "price": 1.0})
    live.run(flow(SALE))
    live.run(flow(SALE))
    before = _everything(live.settings.state_dir)

    with pytest.raises(
        StateError, match=r"arguments of 'n' of operator 'kept' were of int64, and now string.*start anew"
    ):
        live.run(flow(SALE.replace("BIGINT", "STRING")))

    assert _everything(live.settings.state_dir) == before


def test_query_over_a_different_topic_is_refused(started: Live) -> None:
    """The offsets of one topic are not used for another topic."""
    other = started.topic("others", schema=SALE)
    started.send(other, {"id": 1, "shop": "a", "price": 1.0})

    with pytest.raises(
        StateError, match=rf"was reading topic {started.bids.name}, and now topic {other.name}"
    ):
        started.run(_flow(started, source=other))


def test_query_may_change_filters_projections_and_sinks(started: Live) -> None:
    """If the state is unchanged, the query resumes and its fingerprint stays the same."""
    before = json.loads(started.record.read_text())["fingerprint"]
    started.top = started.topic("elsewhere")
    started.send(started.bids, {"id": 9, "shop": "a", "price": 1.5}, {"id": 10, "shop": "b", "price": 50.0})

    started.run(
        _flow(
            started,
            lambda s: (
                s.where("id < 10")
                .select("shop", "price + 0 as price", name="projected")
                .aggregate(by="shop", best="max(price)", name="renamed")
                .select("shop", "best as top", "best * 2 as twice")
            ),
        )
    )

    assert started.values(started.top) == [{"shop": "a", "top": 2.0, "twice": 4.0}]
    assert json.loads(started.record.read_text())["fingerprint"] == before


@pytest.mark.thorough
def test_dataframe_function_with_different_state_is_refused(live: Live) -> None:
    """Spark's plan shows the state of a DataFrame function; it is checked before the query starts."""
    bids, out = live.topic("bids", schema=SALE), live.topic("out")
    live.send(bids, *({"id": i, "shop": "ab"[i % 2], "price": 1.0} for i in range(4)))

    def flow(*columns: str) -> Flow:
        flow = Flow("f")
        unique = flow.read("bids", bids).apply(lambda frame: frame.dropDuplicates([*columns]))
        unique.where("price > 0").write("out", out)
        return flow

    live.run(flow("shop"))
    with pytest.raises(StateError, match=r"apply_1 \(Deduplicate \[shop\].*apply_1 \(Deduplicate \[price\]"):
        live.run(flow("price"))
    live.run(flow("shop"))

    assert sorted(value["shop"] for value in live.values(out)) == ["a", "b"]


def _rewritten(record: Path, **changes: Any) -> None:
    record.write_text(json.dumps({**json.loads(record.read_text()), **changes}))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut-short": (
        lambda record: record.write_text(record.read_text()[:50]),
        "cannot be read .*bring the file back",
    ),
    "no-object": (lambda record: record.write_text("[]"), "cannot be read"),
    "field-missing": (lambda record: record.write_text('{"format": 3, "flow": "f"}'), "cannot be read"),
    "of-another-flow": (lambda record: _rewritten(record, flow="g"), "it is of query 'top' of flow 'g'"),
    "of-the-future": (lambda record: _rewritten(record, format=7), "has format 7, this flowcore reads 3"),
}


def test_damaged_or_foreign_plan_record_stops_a_query(started: Live) -> None:
    """Without a valid plan record the query does not start; once the record is restored, it resumes."""
    good = started.record.read_text()
    for spoil, expected_error in DAMAGE.values():
        spoil(started.record)
        before = _everything(started.settings.state_dir)

        with pytest.raises(StateError, match=expected_error):
            started.run(_flow(started))

        assert _everything(started.settings.state_dir) == before
        started.record.write_text(good)
    started.run(_flow(started))
    assert _tops(started) == {"a": 2.0, "b": 1.0}


@pytest.mark.thorough
def test_checkpoint_without_a_plan_record_is_accepted(
    started: Live, caplog: pytest.LogCaptureFixture
) -> None:
    """Only its topics are checked; the run then writes the plan record."""
    good = json.loads(started.record.read_text())
    started.record.unlink()
    other = started.topic("others", schema=SALE)
    started.send(other, {"id": 1, "shop": "a", "price": 1.0})
    with pytest.raises(StateError, match=rf"was reading {started.bids.name}, and now {other.name}"):
        started.run(_flow(started, source=other))
    started.send(started.bids, {"id": 9, "shop": "a", "price": 90.0})

    with caplog.at_level(logging.WARNING):
        started.run(_flow(started))

    assert "has no plan file yet" in caplog.text
    assert _tops(started) == {"a": 90.0, "b": 1.0}
    assert {**json.loads(started.record.read_text()), "identity": None} == {**good, "identity": None}


def _recreate(live: Live, topic: KafkaTopic) -> None:
    admin = AdminClient({"bootstrap.servers": live.servers})
    admin.delete_topics([topic.name])[topic.name].result(30)
    deadline = time.monotonic() + 300
    while partition_counts(live.servers, [topic.name])[topic.name] is not None:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_recreated_topic_is_refused_until_the_checkpoint_is_removed(started: Live) -> None:
    """Its offsets count other records: reading on would skip the first three of the new topic."""
    _recreate(started, started.bids)
    with pytest.raises(StateError, match=rf"topic '{started.bids.name}' \(id .*\) does not exist any more"):
        started.run(_flow(started))
    started.send(started.bids, *({"id": i, "shop": "c", "price": 10.0 + i} for i in range(5)))

    with pytest.raises(StateError, match=r"was deleted and created again.*; bring the topic.*") as refused:
        started.run(_flow(started))

    assert _tops(started) == {"a": 2.0, "b": 1.0}
    command = str(refused.value).rpartition("after the command: ")[2]
    subprocess.run(shlex.split(command), check=True)
    started.run(_flow(started))
    assert _tops(started) == {"a": 2.0, "b": 1.0, "c": 14.0}


def test_missing_checkpoint_folder_is_refused(started: Live) -> None:
    """With start="latest" the query would skip what arrived since its last batch."""
    moved = started.checkpoint.with_name("moved")
    started.checkpoint.rename(moved)
    started.send(started.bids, {"id": 9, "shop": "a", "price": 90.0})

    with pytest.raises(StateError, match=r"its folder is missing.*start position.*bring the folder back"):
        started.run(_flow(started))

    moved.rename(started.checkpoint)
    started.run(_flow(started))
    assert _tops(started) == {"a": 90.0, "b": 1.0}


def test_query_reports_its_backlog_status(live: Live) -> None:
    """The status is true while a partition has many unread records, and false after they are read."""
    bids, out = live.topic("bids", schema=SALE), live.topic("out")
    live.send(bids, *({"id": i} for i in range(4_000)))
    flow = Flow("f")
    flow.read("bids", bids).write("out", out)
    live.settings = replace(live.settings, max_batch_records=20, backlog_enter=1_000, backlog_leave=10)
    statuses: list[bool | None] = []

    def poll_status(run: Any) -> None:
        while not statuses or statuses[-1] is None:
            (query,) = run.progress()
            statuses.append(query.backlog)
            assert query.active
            run.wait(0.1)

    live.run(flow, "micro-batch", until=poll_status)
    live.settings = replace(live.settings, max_batch_records=5_000)
    live.run(flow, "slice", until=lambda run: (run.wait(60), statuses.append(run.progress()[0].backlog)))

    assert statuses[-2:] == [True, False]
    assert len(live.values(out)) >= 4_000


@pytest.mark.parametrize("kind", sample(["state", "offsets"], "state"))
def test_torn_file_is_named_with_the_command_to_start_anew(started: Live, kind: str) -> None:
    """Files of state are read by Spark, and those of the log before it starts; nothing is written."""
    pattern = "state/**/[0-9]*.changelog" if kind == "state" else "offsets/[0-9]*"
    torn = [path for path in started.checkpoint.glob(pattern) if path.is_file()]
    assert torn
    for path in torn:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    started.send(started.bids, {"id": 9, "shop": "a", "price": 9.0})

    with pytest.raises(DamagedCheckpointError) as refused:
        started.run(_flow(started))

    message = str(refused.value)
    assert any(str(path) in message for path in torn), message
    assert _tops(started) == {"a": 2.0, "b": 1.0}
    subprocess.run(shlex.split(message[message.rindex("rm -r") :]), check=True)
    started.run(_flow(started))
    assert _tops(started) == {"a": 9.0, "b": 1.0}
