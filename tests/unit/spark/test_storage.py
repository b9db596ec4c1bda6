"""Torn files of a checkpoint: each is named, with what to do; a torn last commit repeats its batch."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from flowcore.errors import DamagedCheckpointError
from flowcore.spark.checkpoint.offset_log import committed_batches, planned_batches
from flowcore.spark.checkpoint.storage import (
    WATERMARKS,
    find_torn_state,
    remove_torn_commit,
    require_space,
    require_undamaged,
)

OFFSETS = 'v1\n{"batchWatermarkMs":0,"conf":{}}\n{"bids":{"0":5}}\n-'
COMMIT = 'v2\n{"nextBatchWatermarkMs":0}'


def _checkpoint(folder: Path, *, planned: int, committed: int) -> Path:
    checkpoint = folder / "bids"
    for name, count, content in (("offsets", planned, OFFSETS), ("commits", committed, COMMIT)):
        (checkpoint / name).mkdir(parents=True)
        for number in range(count):
            (checkpoint / name / str(number)).write_text(content)
            (checkpoint / name / f".{number}.crc").write_bytes(b"crc")
    (checkpoint / "metadata").write_text('{"id":"a"}')
    return checkpoint


def _refusal(checkpoint: Path) -> str:
    with pytest.raises(DamagedCheckpointError, match="bring the file back from a copy") as refused:
        require_undamaged(checkpoint, "a")
    return str(refused.value)


def _follow(advice: str) -> None:
    """Run the first command that an error prints."""
    command = re.search(r": (rm [^;,]*?)(?:, or|$)", advice)
    assert command is not None
    subprocess.run(shlex.split(command[1]), check=True)


@pytest.mark.parametrize("content", ["", '\0v1\n{"bids":', "\0v1"], ids=["empty", "cut", "version-only"])
def test_torn_begin_of_a_source_is_named_before_the_first_commit(content: str, tmp_path: Path) -> None:
    """Nothing needs it afterwards."""
    checkpoint = _checkpoint(tmp_path, planned=1, committed=0)
    (checkpoint / "sources" / "0").mkdir(parents=True)
    (checkpoint / "sources" / "0" / "0").write_text('\0v1\n{"bids":{"0":0}}')
    require_undamaged(checkpoint)

    (checkpoint / "sources" / "0" / "0").write_text(content)

    assert "sources/0/0" in _refusal(checkpoint)
    (checkpoint / "commits" / "0").write_text(COMMIT)
    require_undamaged(checkpoint)


@pytest.mark.parametrize("planned", [0, 1, 3], ids=lambda count: f"{count}-batches")
@pytest.mark.parametrize("unfinished", [0, 1])
def test_intact_checkpoint_is_readable(tmp_path: Path, planned: int, unfinished: int) -> None:
    """It may have no batch, and its last batch may not be committed."""
    checkpoint = _checkpoint(tmp_path, planned=planned, committed=max(planned - unfinished, 0))
    (checkpoint / WATERMARKS).write_text("{}")

    require_undamaged(checkpoint)
    remove_torn_commit(checkpoint)

    assert len(committed_batches(checkpoint)) == max(planned - unfinished, 0)


@pytest.mark.parametrize(
    "content",
    ["", "v1", OFFSETS[:40], OFFSETS[:-8], "\x00" * 60, "garbage\n{}\n{}"],
    ids=["empty", "version-only", "cut-in-metadata", "cut-in-offsets", "zeros", "garbage"],
)
@pytest.mark.parametrize("committed", [2, 3], ids=["planned", "committed"])
def test_torn_offsets_of_the_last_batch_name_the_command_that_plans_it_again(
    content: str, committed: int, tmp_path: Path
) -> None:
    """After the command the checkpoint is readable, and ends with the batch before."""
    checkpoint = _checkpoint(tmp_path, planned=3, committed=committed)
    (checkpoint / "offsets" / "2").write_text(content)

    advice = _refusal(checkpoint)
    assert str(checkpoint / "offsets" / "2") in advice
    assert "start anew: rm -r" in advice
    _follow(advice)

    require_undamaged(checkpoint)
    assert sorted(planned_batches(checkpoint)) == sorted(committed_batches(checkpoint)) == [0, 1]
    assert not (checkpoint / "offsets" / ".2.crc").exists()


def test_torn_offsets_before_the_last_batch_cannot_be_planned_again(tmp_path: Path) -> None:
    """The last batch begins where they end."""
    checkpoint = _checkpoint(tmp_path, planned=3, committed=2)
    (checkpoint / "offsets" / "1").write_text("v1\n{")

    advice = _refusal(checkpoint)

    assert str(checkpoint / "offsets" / "1") in advice
    assert "plan batch" not in advice


@pytest.mark.parametrize("content", ["", "v2\n", COMMIT[:-3]], ids=["empty", "version-only", "cut"])
@pytest.mark.parametrize("batches", [1, 3])
def test_torn_last_commit_is_removed_so_that_its_batch_is_repeated(
    content: str, batches: int, tmp_path: Path
) -> None:
    """The batch is repeated exactly: its offsets, and the commit before it, can be read."""
    checkpoint = _checkpoint(tmp_path, planned=batches, committed=batches)
    last = checkpoint / "commits" / str(batches - 1)
    last.write_text(content)

    require_undamaged(checkpoint)
    remove_torn_commit(checkpoint)

    assert sorted(committed_batches(checkpoint)) == list(range(batches - 1))
    assert not last.with_name(f".{last.name}.crc").exists()
    assert len(planned_batches(checkpoint)) == batches


@pytest.mark.parametrize("committed", [1, 2])
def test_torn_commit_stays_if_the_next_batch_is_planned(committed: int, tmp_path: Path) -> None:
    """Spark runs the planned batch next, on the state that the torn commit names."""
    checkpoint = _checkpoint(tmp_path, planned=committed + 1, committed=committed)
    last = checkpoint / "commits" / str(committed - 1)
    last.write_text("v2")

    remove_torn_commit(checkpoint)

    assert last.exists()
    advice = _refusal(checkpoint)
    assert str(last) in advice
    assert f"repeat batch {committed - 1}, and plan batch {committed} again" in advice
    _follow(advice)
    require_undamaged(checkpoint)
    assert len(planned_batches(checkpoint)) == committed
    assert len(committed_batches(checkpoint)) == committed - 1


def test_torn_commit_stays_if_its_batch_cannot_be_repeated(tmp_path: Path) -> None:
    """The state that the batch began with is in the commit before, which is torn as well."""
    checkpoint = _checkpoint(tmp_path, planned=3, committed=3)
    for number in ("1", "2"):
        (checkpoint / "commits" / number).write_text("")

    remove_torn_commit(checkpoint)

    assert len(committed_batches(checkpoint)) == 3
    assert str(checkpoint / "commits" / "2") in _refusal(checkpoint)
    (checkpoint / "offsets" / "3").write_text(OFFSETS)
    assert "again" not in _refusal(checkpoint)


@pytest.mark.parametrize("content", ["", "{}", '{"id":', "[]"], ids=["empty", "no-id", "cut", "list"])
def test_torn_id_of_a_checkpoint_can_be_written_again(content: str, tmp_path: Path) -> None:
    """The plan file has the id."""
    checkpoint = _checkpoint(tmp_path, planned=1, committed=1)
    (checkpoint / "metadata").write_text(content)

    command = re.search(r"(echo '.*?' > \S+),", _refusal(checkpoint))
    assert command is not None
    subprocess.run(command[1], shell=True, check=True)  # noqa: S602 - the command of the error

    require_undamaged(checkpoint)
    assert json.loads((checkpoint / "metadata").read_text()) == {"id": "a"}


@pytest.mark.parametrize("content", ["", '{"bids": {"0"', "5"], ids=["empty", "cut", "number"])
def test_torn_watermarks_name_the_file_to_remove(content: str, tmp_path: Path) -> None:
    """Only the watermarks at the sinks depend on it."""
    checkpoint = _checkpoint(tmp_path, planned=1, committed=1)
    (checkpoint / WATERMARKS).write_text(content)

    _follow(_refusal(checkpoint))

    require_undamaged(checkpoint)


def test_cut_file_of_state_is_found_by_its_recorded_size(tmp_path: Path) -> None:
    """Whole files, and records of files that Spark has removed, are not named."""
    checkpoint = _checkpoint(tmp_path, planned=1, committed=1)
    folder = checkpoint / "state" / "0" / "1"
    folder.mkdir(parents=True)
    for name, size, recorded in (("1_a.changelog", 9, 9), ("2_b.changelog", 4, 9), ("3_c.zip", 5, 5)):
        (folder / name).write_bytes(bytes(size))
        (folder / f"{name}.crc").write_text(json.dumps({"mainFileSize": recorded}))
        (folder / f".{name}.crc").write_bytes(b"crc")
    (folder / "0_z.changelog.crc").write_text(json.dumps({"mainFileSize": 5}))
    (folder / "3_c.zip.crc").write_text("{")

    assert find_torn_state(checkpoint) == [folder / "2_b.changelog", folder / "3_c.zip.crc"]
    assert find_torn_state(tmp_path / "none") == []


def test_space_is_probed_and_given_back(tmp_path: Path) -> None:
    """A folder that cannot be written to raises the system's error."""
    require_space(tmp_path)
    assert list(tmp_path.iterdir()) == []

    with pytest.raises(FileNotFoundError):
        require_space(tmp_path / "gone")
