"""Every record is delivered, has an id that is unique, and is never lost, however a run ends."""

import itertools
import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flowcore import Flow, Json, KafkaTopic, Parquet
from flowcore.errors import BrokerError, FlowcoreError, PlanError, RunError, StateError
from tests.sampling import sample
from tests.waiting import LONGEST_S

pytestmark = pytest.mark.kafka

Live = Any
BID = "id BIGINT NOT NULL, name STRING, at TIMESTAMP"


def _copy(source: KafkaTopic, sink: Any) -> Flow:
    flow = Flow("f")
    flow.read("bids", source).write("out", sink)
    return flow


BAD: list[bytes | None] = [
    b"",
    b"garbage",
    b"null",
    b"5",
    b"[1]",
    b'[{"id": 1}]',
    b'{"id": 1',
    b'{"id": "x"}',
    b'{"id": 1.5}',
    b"{}",
    b'{"id": null}',
    b"\xff\xfe\x00",
    None,
    b'{"id": 1, "at": "yesterday"}',
    b'"text"',
    b'{"id": 99999999999999999999}',
    b'{"id": 1} garbage',
    b'{"id": 1} {"id": 2}',
    b'{"id": 1}]}',
    b"{'id': 1}",
    b'{"id": 1, "name": 5}',
]


def test_dead_letters_carry_bytes_and_coordinates(live: Live) -> None:
    """A dead letter has the original bytes, its coordinates in the topic and the reason."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    values: list[Any] = []
    for number, bad in enumerate(BAD):
        values += [{"id": number}, bad]
    live.send(bids, *values, partitions=2)

    live.run(_copy(bids, out))

    assert sorted(value["id"] for value in live.values(out)) == list(range(len(BAD)))
    dead_letters = live.records(bids.dead_letter)
    origin = {
        (int(r.headers["flowcore-partition"]), int(r.headers["flowcore-offset"])): r.value
        for r in dead_letters
    }
    assert origin == {(1, offset): bad for offset, bad in enumerate(BAD)}
    assert len(dead_letters) == len(BAD)
    assert {record.headers["flowcore-topic"] for record in dead_letters} == {bids.name.encode()}
    assert {record.headers["flowcore-operator"] for record in dead_letters} == {b"bids"}
    assert all(b"id" in record.headers["flowcore-reason"] for record in dead_letters)


def test_values_keep_everything_json_can_express(live: Live) -> None:
    """Unicode, large numbers and nested fields are kept; null fields are omitted, unknown fields ignored."""
    schema = (
        "id BIGINT, text STRING, tags ARRAY<STRING>, at STRUCT<x: INT, `y z`: DOUBLE>, many MAP<STRING, INT>"
    )
    bids, out = live.topic("bids", schema=schema), live.topic("out")
    value = {
        "id": 2**62,
        "text": 'é😀"\\\n',
        "tags": ["a", None],
        "at": {"x": 1, "y z": 0.1},
        "many": {"k": 1},
    }
    live.send(bids, {**value, "unknown": 1}, {"id": 1})

    live.run(_copy(bids, out))

    assert live.values(out) == [value, {"id": 1}]


@pytest.mark.parametrize(
    ("key", "expected"),
    [(None, None), ("id", b"7"), (("id", "name"), b'{"id":7,"name":"x"}'), ("NAME", b"x")],
    ids=["none", "one", "several", "other-case"],
)
def test_key_is_the_text_of_its_columns(live: Live, key: Any, expected: bytes | None) -> None:
    """A single key column is written as it is, several columns as a JSON object."""
    bids, out = live.topic("bids", schema=BID), live.topic("out", key=key)
    live.send(bids, {"id": 7, "name": "x"})

    live.run(_copy(bids, out))

    assert [record.key for record in live.records(out)] == [expected]


def test_restart_resumes_after_the_last_committed_record(live: Live) -> None:
    """Over several slices and partitions each record is written once."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    for start in (0, 100, 200):
        live.send(bids, *({"id": number} for number in range(start, start + 100)), partitions=3)
        live.run(_copy(bids, out))

    assert sorted(value["id"] for value in live.values(out)) == list(range(300))
    assert len({record.headers["flowcore-id"] for record in live.records(out)}) == 300

    live.run(_copy(bids, out))
    assert len(live.records(out)) == 300


def test_restart_with_start_latest_loses_nothing_between_slices(live: Live) -> None:
    """The setting ``latest`` applies to the first run only."""
    bids, out = live.topic("bids", schema=BID, start="latest"), live.topic("out")
    live.send(bids, {"id": 1})
    live.run(_copy(bids, out))
    live.send(bids, {"id": 2})
    live.run(_copy(bids, out))

    assert live.values(out) == [{"id": 2}]


@pytest.mark.parametrize("start", ["offset", "time"])
def test_start_is_where_a_first_run_begins(live: Live, start: str) -> None:
    """The start is an offset, or the first record at or after a time."""
    place: Any = {0: 2} if start == "offset" else datetime(2026, 1, 3, tzinfo=UTC)
    bids, out = live.topic("bids", schema=BID, start=place), live.topic("out")
    days = [int(datetime(2026, 1, day, tzinfo=UTC).timestamp() * 1000) for day in (1, 2, 3, 4)]
    live.send(bids, *({"id": number} for number in range(4)), times_ms=days)

    live.run(_copy(bids, out))

    assert [value["id"] for value in live.values(out)] == [2, 3]


def test_fail_names_the_record(live: Live, capfd: pytest.CaptureFixture[str]) -> None:
    """With on_error='fail' the query stops at the first bad record and names it, without a dead letter."""
    bids, out = live.topic("bids", schema=BID, on_error="fail"), live.topic("out")
    live.send(bids, {"id": 1}, b"garbage")

    with pytest.raises(RunError) as caught:
        live.run(_copy(bids, out))

    text = str(caught.value)
    assert f"{bids.name}[0]@1 does not fit the schema" in text
    assert "garbage" in text
    assert "query 'bids'" in text
    assert "\n" not in text
    assert "org.apache" not in text
    assert "\tat " not in capfd.readouterr().err


@pytest.mark.parametrize("mode", sample(["realtime", "micro-batch"], "realtime"))
def test_failing_query_reports_its_reason_and_stops_the_others(live: Live, mode: Any) -> None:
    """An error in one query ends the run with a one-line message."""
    bids, out, sums = live.topic("bids", schema=BID), live.topic("out"), live.topic("sums")
    live.send(bids, {"id": 0})
    flow = Flow("f")
    source = flow.read("bids", bids)
    source.write("out", out)
    source.aggregate(by="name", total="sum(if(id = 0, raise_error('zero'), id))").write("sums", sums)

    with pytest.raises(RunError, match=r"query 'sums' of flow 'f' failed: .*zero") as caught:
        live.run(flow, mode, lambda run: run.wait(LONGEST_S))

    assert "\n" not in str(caught.value)
    assert "===" not in str(caught.value)
    assert not live.spark.streams.active


def test_second_run_on_a_checkpoint_is_refused(live: Live) -> None:
    """A second run is refused while the first is running and accepted after the first has ended."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, {"id": 1})
    flow = _copy(bids, out)

    def second(_: Any) -> None:
        with pytest.raises(RunError, match="query 'bids' already runs on the checkpoint"):
            live.run(flow)

    live.run(flow, "micro-batch", second)
    live.run(flow)

    # The first run may have been stopped before it committed its batch, which the second one then repeats.
    assert [*{record.id: record.json for record in live.records(out)}.values()] == [{"id": 1}]


def test_run_resumes_after_a_kill_during_the_first_offsets_file(live: Live) -> None:
    """Such a kill leaves a partial file and no batch; Spark alone would always refuse this checkpoint."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, {"id": 1})
    offsets = live.settings.state_dir / "f" / "checkpoints" / "bids" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.4f7c.tmp").write_text("v1")
    (offsets / "..0.4f7c.tmp.crc").write_text("?")

    live.run(_copy(bids, out))

    assert live.values(out) == [{"id": 1}]


def test_source_topic_that_does_not_exist_is_an_error(live: Live) -> None:
    """A missing topic is refused before Spark starts; with partitions= it is created."""
    out = live.topic("out")
    with pytest.raises(RunError, match=r"source 'bids': topic 'missing-.*' does not exist.*partitions="):
        live.run(_copy(live.topic("missing", schema=BID), out))

    live.run(_copy(live.topic("made", schema=BID, partitions=3), out))

    assert live.records(live.topic("made")) == []


def test_wrong_types_in_a_live_query_name_operator_and_columns(live: Live) -> None:
    """The error of a live query has the user's names, as in a bounded stage."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, {"id": 1})
    flow = Flow("f")
    flow.read("bids", bids).select("id + array(1) as x", name="pick").write("out", out)

    with pytest.raises(PlanError, match=r"operator 'pick' cannot be compiled: .*\(id \+ array\(1\)\)"):
        live.run(flow)


def test_broker_that_does_not_answer_is_an_error(live: Live) -> None:
    """The error is raised within seconds and contains the broker's address."""
    bids = KafkaTopic("bids", schema=BID, servers="127.0.0.1:1")

    with pytest.raises(BrokerError, match=r"127.0.0.1:1"):
        live.run(_copy(bids, live.topic("out")))


def test_live_file_sink_appends_each_slice(live: Live, tmp_path: Path) -> None:
    """Each slice appends whole batches of files; a separate query writes bad records to the dead letters."""
    bids = live.topic("bids", schema=BID)
    for number in (1, 2):
        live.send(bids, {"id": number, "name": "x"}, b"bad")
        live.run(_copy(bids, Parquet("archive")))

    table = pq.read_table([str(path) for path in (tmp_path / "archive").glob("*.parquet")])
    assert sorted(table.column("id").to_pylist()) == [1, 2]
    assert [record.value for record in live.records(bids.dead_letter)] == [b"bad", b"bad"]


@pytest.mark.parametrize(
    ("kind", "bounded"),
    sample(itertools.product([Parquet, Json], [True, False]), (Json, True), (Parquet, False)),
)
def test_files_are_in_folders_by_columns(live: Live, tmp_path: Path, kind: Any, bounded: bool) -> None:
    """The columns of the folders are not in the files, and a reader of the sink gets them back."""
    bids = live.topic("bids", schema=BID, until="latest" if bounded else None)
    live.send(bids, {"id": 1, "name": "a:b"}, {"id": 2, "name": "c"}, {"id": 3})
    copy = _copy(bids, kind("archive", partition_by="name"))
    live.run(copy)

    folders = {path.name for path in (tmp_path / "archive").iterdir() if "=" in path.name}
    assert folders == {"name=a%3Ab", "name=c", "name=__HIVE_DEFAULT_PARTITION__"}
    back = Flow("back")
    back.read("archive", kind("archive", schema="name STRING, id BIGINT")).write("out", Parquet("out"))
    live.run(back)
    table = pq.read_table([str(path) for path in (tmp_path / "out").glob("*.parquet")])
    rows = {(row["name"], row["id"]) for row in table.to_pylist()}
    assert rows == {("a:b", 1), ("c", 2), (None, 3)}


def test_file_sink_of_another_checkpoint_is_refused(live: Live, tmp_path: Path) -> None:
    """Its batches have the numbers of batches that are in the folder, which Spark would drop."""
    bids = live.topic("bids", schema=BID)
    live.send(bids, {"id": 1})
    live.run(_copy(bids, Parquet("archive")))
    live.run(_copy(bids, Parquet("archive")))
    shutil.rmtree(tmp_path / "state" / "f")

    with pytest.raises(StateError, match=r"sink folder .*archive has the batches up to 0 of another"):
        live.run(_copy(bids, Parquet("archive")))

    live.run(_copy(bids, Parquet("new")))
    assert len(pq.read_table([str(path) for path in (tmp_path / "new").glob("*.parquet")])) == 1


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"until": "latest"}, [0, 1, 2, 3]),
        ({"start": {0: 1}, "until": {0: 3}}, [1, 2]),
        ({"until": {0: 2}}, [0, 1]),
        ({"start": datetime(2026, 1, 2, tzinfo=UTC), "until": datetime(2026, 1, 4, tzinfo=UTC)}, [1, 2]),
        ({"start": datetime(2027, 1, 1, tzinfo=UTC), "until": "latest"}, []),
    ],
    ids=["all", "offsets", "until-offset", "times", "nothing-that-late"],
)
def test_bounded_topic_returns_the_records_within_its_bounds(
    live: Live, tmp_path: Path, bounds: dict[str, Any], expected: list[int]
) -> None:
    """Bounds are offsets or times, the end is exclusive; bad records are dead letters and are counted."""
    bids = live.topic("bids", schema=BID, **bounds)
    days = [int(datetime(2026, 1, day, tzinfo=UTC).timestamp() * 1000) for day in (1, 2, 3, 4)]
    live.send(bids, *({"id": number} for number in range(4)), times_ms=days)

    live.run(_copy(bids, Parquet("out")))

    table = pq.read_table([str(path) for path in (tmp_path / "out").glob("*.parquet")])
    assert sorted(table.column("id").to_pylist()) == expected


def test_bounded_topic_writes_dead_letters_and_a_sink_topic(live: Live, tmp_path: Path) -> None:
    """The manifest of a bounded flow between topics counts rejected records and is reused if up to date."""
    bids, best = live.topic("bids", schema=BID, until="latest"), live.topic("best")
    live.send(bids, {"id": 1, "name": "x"}, b"bad", {"id": 2, "name": "x"})
    flow = Flow("f")
    flow.read("bids", bids).aggregate(by="name", best="max(id)").write("best", best)

    live.run(flow)
    live.run(flow)

    assert [(record.key, record.json) for record in live.records(best)] == [(b"x", {"name": "x", "best": 2})]
    assert [record.value for record in live.records(bids.dead_letter)] == [b"bad"]
    manifest = json.loads((tmp_path / "state" / "f" / "results" / "best" / "manifest.json").read_text())
    assert manifest["rejected"] == {"bids": 1}

    live.send(bids, {"id": 3, "name": "x"})
    live.run(flow)
    assert [record.json["best"] for record in live.records(best)] == [2, 3]


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"until": {0: 9}}, "partition 0: start 0, until 9"),
        ({"until": {5: 1}}, r"has the partitions \[0\], not \[5\]"),
    ],
    ids=["beyond-the-end", "no-such-partition"],
)
def test_bounded_topic_that_cannot_be_read_is_an_error(
    live: Live, bounds: dict[str, Any], message: str
) -> None:
    """Reading it would block or return other records than requested."""
    bids = live.topic("bids", schema=BID, **bounds)
    live.send(bids, {"id": 1}, {"id": 2}, {"id": 3})

    with pytest.raises(FlowcoreError, match=message):
        live.run(_copy(bids, Parquet("out")))


def test_bounded_topic_with_on_error_fail_names_the_record(live: Live) -> None:
    """The error names the record, as in a live query."""
    bids = live.topic("bids", schema=BID, until="latest", on_error="fail")
    live.send(bids, {"id": 1}, b"garbage")

    with pytest.raises(RunError, match=rf"stage 'out' failed: .*{bids.name}\[0\]@1 does not fit the schema"):
        live.run(_copy(bids, Parquet("out")))
