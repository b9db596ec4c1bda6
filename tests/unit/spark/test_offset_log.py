"""Offsets of a topic whose lost records nobody needs are moved to what is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowcore.spark.checkpoint import offset_log
from flowcore.spark.checkpoint.offset_log import (
    find_lost_offsets,
    has_unfinished_batch,
    move_offsets,
    planned_ends,
    unread_offsets,
)

HEAD = 'v1\n{"batchWatermarkMs":0}\n'


def test_lost_offsets_move_in_the_last_batch_and_the_planned_one(tmp_path: Path) -> None:
    """Other topics, earlier batches and offsets that are there stay; the checksum of a changed file goes."""
    folder = tmp_path / "offsets"
    folder.mkdir()
    for number, (marks, bids) in enumerate([(1, 2), (3, 4), (9, 8)]):
        (folder / str(number)).write_text(
            f'{HEAD}{{"bids.events":{{"0":{marks},"1":6}},"bids":{{"0":{bids}}}}}\n-'
        )
        (folder / f".{number}.crc").touch()

    assert move_offsets(tmp_path, "bids.events", {0: 5, 1: 0}, {0: 7, 1: 9})
    assert not move_offsets(tmp_path, "bids.events", {0: 5, 1: 0}, {0: 7, 1: 9})

    texts = [(folder / str(number)).read_text() for number in range(3)]
    assert texts == [
        f'{HEAD}{{"bids.events":{{"0":1,"1":6}},"bids":{{"0":2}}}}\n-',
        f'{HEAD}{{"bids.events":{{"0":5,"1":6}},"bids":{{"0":4}}}}\n-',
        f'{HEAD}{{"bids.events":{{"0":7,"1":6}},"bids":{{"0":8}}}}\n-',
    ]
    assert sorted(file.name for file in folder.iterdir()) == [".0.crc", "0", "1", "2"]


def test_unread_offsets_that_a_topic_has_removed_are_lost(tmp_path: Path) -> None:
    """Offsets of the last committed batch count; a partition with all its records is not named."""
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    assert _lost(tmp_path, "bids", {0: 5}) == {}
    for number, offsets in enumerate(({"0": 2, "1": 6}, {"0": 4, "1": 9})):
        (tmp_path / "offsets" / str(number)).write_text(HEAD + json.dumps({"bids": offsets}))
    (tmp_path / "commits" / "0").touch()

    assert _lost(tmp_path, "bids", {0: 5, 1: 6}) == {0: (2, 5)}
    assert _lost(tmp_path, "bids", {0: 2, 1: 6, 2: 8, 3: 0}) == {2: (0, 8)}
    assert _lost(tmp_path, "bids", {0: 2, 1: 7}) == {1: (6, 7)}
    assert _lost(tmp_path, "asks", {0: 2, 1: 7}) == {}


def test_offsets_where_the_first_batch_begins_are_lost_and_moved(tmp_path: Path) -> None:
    """As long as nothing is committed, each source's own log says what is unread, also before a plan."""
    logs = [tmp_path / "sources" / number for number in "01"]
    for log, topic in zip(logs, ("bids", "asks"), strict=True):
        log.mkdir(parents=True)
        (log / "0").write_text("\0v1\n" + json.dumps({topic: {"0": 4}}))
    assert _lost(tmp_path, "bids", {0: 4, 1: 0}) == {}
    assert _lost(tmp_path, "bids", {0: 7, 1: 2}) == {0: (4, 7), 1: (0, 2)}

    assert move_offsets(tmp_path, "bids", {0: 7, 1: 2}, {0: 9, 1: 9})

    assert _lost(tmp_path, "bids", {0: 7, 1: 2}) == {}
    assert [(log / "0").read_text() for log in logs] == [
        '\0v1\n{"bids":{"0":7,"1":2}}', '\0v1\n{"asks": {"0": 4}}'
    ]  # fmt: skip


def test_partitions_that_the_log_does_not_have_are_added(tmp_path: Path) -> None:
    """Also for a topic that is read from now on; a partition that begins at 0 needs no entry."""
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    for number, offsets in enumerate(({"0": 2}, {"0": 4, "1": 5})):
        (tmp_path / "offsets" / str(number)).write_text(HEAD + json.dumps({"bids": offsets}))
    (tmp_path / "commits" / "0").touch()

    assert move_offsets(tmp_path, "bids", {0: 1, 1: 3, 2: 0}, {0: 9, 1: 9, 2: 9})
    assert move_offsets(tmp_path, "bids.events", {0: 7, 1: 0}, {0: 8, 1: 8}, beside="bids")

    assert offset_log.batch_range(tmp_path, 1, "bids") == ({0: 2, 1: 3}, {0: 4, 1: 5})
    assert offset_log.batch_range(tmp_path, 1, "bids.events") == ({0: 7}, {0: 7})
    assert not move_offsets(tmp_path, "asks", {0: 7}, {0: 8})
    assert move_offsets(tmp_path, "bids", {0: 9}, {})
    assert offset_log.batch_range(tmp_path, 1, "bids") == ({0: 9, 1: 3}, {0: 9, 1: 5})


def test_offsets_after_the_end_of_a_topic_are_lost(tmp_path: Path) -> None:
    """A broker that fails may lose what was read, also what a planned batch reads again."""
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    for number, offsets in enumerate(({"0": 2, "1": 6}, {"0": 4, "1": 9})):
        (tmp_path / "offsets" / str(number)).write_text(HEAD + json.dumps({"bids": offsets}))
    (tmp_path / "commits" / "0").touch()
    begin = {0: 0, 1: 0}
    unread, planned = unread_offsets(tmp_path)["bids"], planned_ends(tmp_path)["bids"]
    assert find_lost_offsets(unread, planned, begin, {0: 4, 1: 9}) == []
    found = find_lost_offsets(unread, planned, {0: 3, 1: 0}, {0: 3, 1: 5})
    assert found == [(0, 2, 3), (0, 4, 3), (1, 9, 5)]

    assert move_offsets(tmp_path, "bids", {0: 3}, {0: 3, 1: 5})

    unread, planned = unread_offsets(tmp_path)["bids"], planned_ends(tmp_path)["bids"]
    assert find_lost_offsets(unread, planned, {0: 3, 1: 0}, {0: 3, 1: 5}) == []
    assert offset_log.batch_range(tmp_path, 1, "bids") == ({0: 3, 1: 5}, {0: 3, 1: 5})


def test_query_that_runs_meanwhile_has_lost_nothing(tmp_path: Path) -> None:
    """It plans and commits a batch between the answer of the broker and the comparison."""
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    (tmp_path / "offsets" / "0").write_text(HEAD + json.dumps({"bids": {"0": 10}}))
    (tmp_path / "commits" / "0").touch()
    planned = planned_ends(tmp_path)["bids"]
    (tmp_path / "offsets" / "1").write_text(HEAD + json.dumps({"bids": {"0": 12}}))
    (tmp_path / "commits" / "1").touch()

    assert find_lost_offsets(unread_offsets(tmp_path)["bids"], planned, {0: 11}, {0: 11}) == []


def test_interrupted_move_is_completed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planned batch has its end first; the records still count as lost until it has its begin, too."""
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    for number, offset in enumerate((2, 4)):
        (tmp_path / "offsets" / str(number)).write_text(HEAD + json.dumps({"bids": {"0": offset}}))
    (tmp_path / "commits" / "0").touch()
    replace, files = offset_log.replace_file, list[str]()

    def replace_one(path: Path, text: str) -> None:
        files.append(path.name)
        if len(files) == 2:
            raise KeyboardInterrupt
        replace(path, text)

    monkeypatch.setattr(offset_log, "replace_file", replace_one)
    with pytest.raises(KeyboardInterrupt):
        move_offsets(tmp_path, "bids", {0: 9}, {0: 20})
    assert _lost(tmp_path, "bids", {0: 9}) == {0: (2, 9)}

    assert move_offsets(tmp_path, "bids", {0: 9}, {0: 20})

    assert files == ["1", "0", "0"]
    assert _lost(tmp_path, "bids", {0: 9}) == {}
    assert offset_log.batch_range(tmp_path, 1, "bids") == ({0: 9}, {0: 9})


def test_batch_without_commit_is_unfinished(tmp_path: Path) -> None:
    """An unused checkpoint has none."""
    assert not has_unfinished_batch(tmp_path)
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0").touch()
    assert not has_unfinished_batch(tmp_path)
    (tmp_path / "offsets" / "1").touch()
    assert has_unfinished_batch(tmp_path)


def _lost(checkpoint: Path, topic: str, first: dict[int, int]) -> dict[int, tuple[int, int]]:
    """What a topic with its newest records has removed."""
    if topic not in (unread := unread_offsets(checkpoint)):
        return {}
    found = find_lost_offsets(unread[topic], planned_ends(checkpoint)[topic], first, {})
    return {partition: (begin, end) for partition, begin, end in found}
