"""Spark's log of offsets in a checkpoint: the planned and committed batches, and what they read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flowcore.metrics.tally import topic_offsets

__all__ = [
    "batch_range",
    "begin_logs",
    "checkpointed_topics",
    "clear_unused_log",
    "committed_batches",
    "committed_offsets",
    "find_lost_offsets",
    "forget_unplanned_files",
    "has_unfinished_batch",
    "move_offsets",
    "next_batch",
    "planned_batches",
    "planned_ends",
    "replace_file",
    "state_partitions",
    "unread_offsets",
]


def planned_batches(checkpoint: Path) -> list[int]:
    """The numbers of the batches in the log; none if the checkpoint was never used."""
    return [int(file.name) for file in (checkpoint / "offsets").glob("*") if file.name.isdecimal()]


def committed_batches(checkpoint: Path) -> list[int]:
    """The numbers of the committed batches in the log."""
    return [int(file.name) for file in (checkpoint / "commits").glob("*") if file.name.isdecimal()]


def checkpointed_topics(checkpoint: Path) -> set[str]:
    """The topics that a checkpoint has offsets of, companion topics included."""
    latest = max(planned_batches(checkpoint), default=None)
    return set() if latest is None else set(_offsets(checkpoint / "offsets" / str(latest)))


def has_unfinished_batch(checkpoint: Path) -> bool:
    """Whether a batch was planned and not committed, so that the next start repeats it."""
    return max(planned_batches(checkpoint), default=-1) > max(committed_batches(checkpoint), default=-1)


def next_batch(checkpoint: Path) -> int:
    """The number of the batch that the next start runs first; it may have been planned before."""
    return max(committed_batches(checkpoint), default=-1) + 1


def committed_offsets(checkpoint: Path) -> dict[str, dict[int, int]]:
    """By topic and partition, the first offset that the batch after the last committed one reads.

    Nothing is known without a checkpoint, or without a committed batch.
    """
    latest = max(committed_batches(checkpoint), default=None)
    planned = checkpoint / "offsets" / str(latest)
    return {} if latest is None or not planned.exists() else _offsets(planned)


def unread_offsets(checkpoint: Path) -> dict[str, dict[int, int]]:
    """By topic and partition, the first offset that no committed batch has read.

    Before the first commit it is where each source begins; nothing is known until Spark has logged that.
    """
    return committed_offsets(checkpoint) if committed_batches(checkpoint) else _first_offsets(checkpoint)


def batch_range(checkpoint: Path, batch: int, topic: str) -> tuple[dict[int, int], dict[int, int]]:
    """By partition, the first offset that a planned batch reads of a topic, and the first after these.

    A partition that the batch before did not know is read from offset 0.
    """
    planned = checkpoint / "offsets"
    before = _offsets(planned / str(batch - 1)) if batch else _first_offsets(checkpoint)
    begin = before.get(topic, {})
    end = _offsets(planned / str(batch)).get(topic, {})
    return {partition: begin.get(partition, 0) for partition in end}, end


def planned_ends(checkpoint: Path) -> dict[str, dict[int, int]]:
    """By topic and partition, the end of the last planned batch; where the first one begins before a plan."""
    last = _last_planned(checkpoint)
    return _offsets(last[0]) if last else _first_offsets(checkpoint)


def find_lost_offsets(
    unread: Mapping[int, int], planned: Mapping[int, int], first: Mapping[int, int], last: Mapping[int, int]
) -> list[tuple[int, int, int]]:
    """Partitions, where a query would read them, and where it can: the offsets between them are gone.

    A topic has removed its oldest records, or its broker has lost the newest ones. A partition that was added
    to a topic is read from offset 0.

    Args:
        unread: By partition, the first offset that no committed batch has read.
        planned: By partition, the end of the last planned batch.
        first: By partition, the offset of the oldest record.
        last: By partition, the offset of the next record.
    """
    found = []
    for partition, oldest in sorted(first.items()):
        begin, end = unread.get(partition, 0), planned.get(partition, 0)
        if begin < oldest:
            found.append((partition, begin, oldest))
        if end > last.get(partition, end):
            found.append((partition, end, last[partition]))
    return found


def state_partitions(checkpoint: Path, batch: int | None = None) -> int:
    """The number of partitions of the state, as of a planned batch; by default the last one."""
    batch = max(planned_batches(checkpoint)) if batch is None else batch
    metadata = json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[1])
    return int(metadata["conf"]["spark.sql.shuffle.partitions"])


def move_offsets(
    checkpoint: Path, topic: str, first: Mapping[int, int], last: Mapping[int, int], beside: str | None = None
) -> bool:
    """Move the offsets of a topic between its first record and its end; returns whether any was outside.

    To be called while no query runs on the checkpoint, for a topic whose lost records nobody needs. Spark
    would refuse to continue for ever, also where a partition that it does not know begins above 0: such a
    partition is added. After an interrupted call the records still count as lost, so that another call moves
    the rest.

    Args:
        first: By partition, the offset of the oldest record.
        last: By partition, the offset of the next record, where it matters.
        beside: A topic of the same source, from which on this topic is read too if the log does not have it.
    """
    added = {str(partition): oldest for partition, oldest in first.items() if oldest}

    def move(source: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(source.get(beside or topic), dict):
            return source
        offsets = added | source.get(topic, {})
        moved = {}
        for partition, offset in offsets.items():
            oldest = max(offset, first.get(int(partition), 0))
            moved[partition] = min(oldest, last.get(int(partition), oldest))
        return source | {topic: moved} if moved else source

    # A planned batch begins where the one before it ends, so its end is moved first.
    logs = [(file, 2) for file in _last_planned(checkpoint)]
    if not committed_batches(checkpoint):
        logs += [(file, 1) for file in begin_logs(checkpoint)]
    moved = [_change_sources(file, head, move) for file, head in logs]
    return any(moved)


def _change_sources(file: Path, head: int, change: Callable[[dict[str, Any]], dict[str, Any]]) -> bool:
    """Change each source in a log, which has so many lines before them; returns whether any differs."""
    lines = file.read_text().splitlines()
    changed = [*lines]
    for place, line in enumerate(lines[head:], head):
        source = json.loads(line) if line.startswith("{") else {}
        if (now := change(source)) != source:
            changed[place] = json.dumps(now, separators=(",", ":"))
    if changed != lines:
        replace_file(file, "\n".join(changed))
    return changed != lines


def replace_file(path: Path, text: str) -> None:
    """Replace a file of a checkpoint at once, also where it is a link, and remove Spark's checksum of it."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    part.replace(path)


def clear_unused_log(checkpoint: Path) -> None:
    """Remove the files of a run that ended before its first batch was planned.

    If half a file is left in the log of offsets, Spark refuses the checkpoint for ever. So it does if a
    batch of real-time mode, which is planned at its end, has left state, and the next one is a micro-batch.
    """
    offsets = checkpoint / "offsets"
    if offsets.exists() and not planned_batches(checkpoint) and not committed_batches(checkpoint):
        for file in offsets.iterdir():
            file.unlink()
        shutil.rmtree(checkpoint / "state", ignore_errors=True)


def forget_unplanned_files(checkpoint: Path) -> None:
    """Remove from the logs of file sources the entries that no planned batch reads.

    Spark logs which files it will read, then plans the batch. If it is killed between both, the next batch
    reads these files and its own ones, and the order of their records is lost.
    """
    planned = planned_batches(checkpoint)
    lines = (checkpoint / "offsets" / str(max(planned))).read_text().splitlines()[2:] if planned else []
    for log in (checkpoint / "sources").glob("[0-9]*"):
        line = lines[int(log.name)] if lines else "-"
        last = json.loads(line).get("logOffset", -1) if line.startswith("{") else -1
        for entry in log.glob("[0-9]*"):
            is_of_files = '"path"' in entry.read_text()
            if is_of_files and int(entry.name.removesuffix(".compact")) > last:
                entry.unlink()
                (log / f".{entry.name}.crc").unlink(missing_ok=True)


def _last_planned(checkpoint: Path) -> list[Path]:
    """The logs of the last two planned batches, the last one first."""
    return [checkpoint / "offsets" / str(batch) for batch in sorted(planned_batches(checkpoint))[:-3:-1]]


def begin_logs(checkpoint: Path) -> list[Path]:
    """The logs of sources; those of topics say where the first batch begins."""
    return [*(checkpoint / "sources").glob("[0-9]*/0")]


def _first_offsets(checkpoint: Path) -> dict[str, dict[int, int]]:
    """By topic and partition, where the first batch begins."""
    lines = (line for log in begin_logs(checkpoint) for line in log.read_text().splitlines())
    return topic_offsets(json.loads(line) for line in lines if line.startswith("{"))


def _offsets(planned: Path) -> dict[str, dict[int, int]]:
    lines = planned.read_text().splitlines()[2:]
    return topic_offsets(json.loads(line) for line in lines if line.startswith("{"))
