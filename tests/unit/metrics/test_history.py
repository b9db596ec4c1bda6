"""The history keeps progress in files of bounded size, also if its writer is killed at any time."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.metrics.history import HistoryWriter, history_folder, known_flows, last_progress, read_history
from flowcore.metrics.progress import FlowProgress, LatencyProgress, PartitionProgress, QueryProgress, Switch

SECOND_MS, HOUR_MS = 1_000, 3_600_000


def progress(time_ms: int, *, flow: str = "sales") -> FlowProgress:
    """A progress with a value in every part."""
    partition = PartitionProgress(topic="bids", partition=0, offset=1, end=3, lag=2)
    query = QueryProgress(
        name="out", mode="realtime", active=True, bounded={"usual": "v1"}, partitions=(partition,)
    )
    return FlowProgress(
        flow=flow, time_ms=time_ms, seconds=time_ms / 1000, queries=(query,),
        latencies=(LatencyProgress(source="sales/bids", sink="out", markers=3, p50_ms=0.5),),
        switches=(Switch(time_ms=1, query="out", before="slice", after="realtime", reason="native"),),
    )  # fmt: skip


def write(folder: Path, times_ms: list[int], file_bytes: int = 1 << 20) -> None:
    """Write progress as one process does."""
    writer = HistoryWriter(folder, file_bytes)
    for time_ms in times_ms:
        writer.progressed(progress(time_ms))


def test_history_returns_what_was_written(tmp_path: Path) -> None:
    """Each progress is returned once, oldest first, over several runs too."""
    write(tmp_path, [1_000, 2_000])
    write(tmp_path, [3_000])

    killed = replace(progress(2_000), state="killed")
    assert read_history(tmp_path) == [progress(1_000), killed, progress(3_000)]
    assert read_history(tmp_path, since_ms=2_000) == [killed, progress(3_000)]
    assert last_progress(tmp_path) == progress(3_000)


def test_history_records_that_the_run_before_was_killed(tmp_path: Path) -> None:
    """It is known when the next run begins; a run that has reported its end was not."""
    for folder, state in ((tmp_path / "killed", "running"), (tmp_path / "ended", "ended")):
        last = replace(progress(2_000), state=state)
        for one in (progress(1_000), last):
            HistoryWriter(folder).progressed(one)
        write(folder, [3_000])

    assert [one.state for one in read_history(tmp_path / "ended")] == ["killed", "ended", "running"]
    assert [one.state for one in read_history(tmp_path / "killed")] == ["killed", "killed", "running"]


def test_history_of_months_stays_small_and_has_the_first_day(tmp_path: Path) -> None:
    """Coarse files reach further back than fine files, and their total size is bounded."""
    file_bytes = 40_000
    apart_ms, days = 300 * SECOND_MS, 60
    write(tmp_path, list(range(0, days * 24 * HOUR_MS, apart_ms)), file_bytes)
    found = read_history(tmp_path)
    last_hour = [one for one in found if one.time_ms >= (days * 24 - 1) * HOUR_MS]

    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 8 * file_bytes
    assert found[-1].time_ms - found[0].time_ms > 50 * HOUR_MS
    assert len(last_hour) == 12


def test_history_thins_by_the_clock_not_by_the_run(tmp_path: Path) -> None:
    """A slice every minute, each its own run, does not fill the file of hours."""
    for minute in range(120):
        HistoryWriter(tmp_path).progressed(replace(progress(minute * 60_000), state="ended"))

    lines = {file.name: len(file.read_bytes().splitlines()) for file in tmp_path.iterdir()}

    assert lines == {"all.jsonl": 120, "1min.jsonl": 120, "10min.jsonl": 12, "1h.jsonl": 2}


@given(cut=st.integers(min_value=0, max_value=2_000))
def test_history_survives_a_process_that_is_killed_while_it_writes(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    """Earlier and later progress is read; only the partial line is lost."""
    folder = tmp_path_factory.mktemp("history")
    write(folder, [1_000, 2_000])
    for file in folder.iterdir():
        content = file.read_bytes()
        whole = content.index(b"\n") + 1 if file.name == "all.jsonl" else 0
        file.write_bytes(content[: whole + cut])
    write(folder, [3_000])

    times = [one.time_ms for one in read_history(folder)]

    assert times[0] == 1_000
    assert times[-1] == 3_000
    assert last_progress(folder) == progress(3_000)


def test_history_continues_when_the_clock_is_set_back(tmp_path: Path) -> None:
    """Coarse files would otherwise pause until the old time is reached again."""
    write(tmp_path, [10 * HOUR_MS, HOUR_MS])

    assert len((tmp_path / "1h.jsonl").read_bytes().splitlines()) == 2


def test_history_of_another_version_is_read(tmp_path: Path) -> None:
    """Unknown fields are ignored, and missing fields have their default."""
    stored = progress(1_000).stored()
    stored["colour"] = stored["queries"][0]["colour"] = "blue"
    del stored["switches"], stored["queries"][0]["late"]
    (tmp_path / "all.jsonl").write_text(json.dumps(stored) + '\n{"other": 1}\n[]\n')

    (found,) = read_history(tmp_path)

    assert found.switches == ()
    assert found.queries == progress(1_000).queries


def test_history_keeps_the_beginning_of_a_long_error(tmp_path: Path) -> None:
    """An error may quote a record of a megabyte; the line would be longer than what a reader looks at."""
    writer = HistoryWriter(tmp_path)
    writer.progressed(progress(1_000))
    switch = replace(progress(1).switches[0], reason="s" * 1_000_000)
    writer.progressed(replace(progress(2_000), state="failed", error="e" * 1_000_000, switches=(switch,)))

    last = last_progress(tmp_path)

    assert last is not None
    assert (last.state, last.error[:4_001]) == ("failed", "e" * 4_000 + ".")
    assert last.switches[0].reason == "s" * 4_000 + "..."


def test_last_progress_may_have_many_partitions(tmp_path: Path) -> None:
    """A line that is longer than what is read first is found; else `flowcore top` says that nothing runs."""
    (query,) = progress(1_000).queries
    partitions = tuple(replace(query.partitions[0], partition=number) for number in range(5_000))
    last = replace(progress(2_000), queries=(replace(query, partitions=partitions),))
    HistoryWriter(tmp_path).progressed(last)
    assert (tmp_path / "all.jsonl").stat().st_size > 1 << 18

    assert last_progress(tmp_path) == last


def test_history_names_the_flows_that_have_one(tmp_path: Path) -> None:
    """The names help a user who has mistyped one."""
    write(history_folder(tmp_path, "sales"), [1])
    (tmp_path / "other" / "results").mkdir(parents=True)

    assert known_flows(tmp_path) == ["sales"]
    assert last_progress(history_folder(tmp_path, "other")) is None
