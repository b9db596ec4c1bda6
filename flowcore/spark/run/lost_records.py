"""Check that stopped queries can continue in their topics, or skip the records that a topic has removed.

A topic removes records by age, by size or by hand. Spark refuses to continue there. A start is refused with
the lost offsets, or continues after them and lists what it skipped.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.errors import LostRecordsError
from flowcore.kafka.topics import TopicIdentity, begin_offsets_of_topics, identify_topics
from flowcore.planner.model import LiveQuery
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.checkpoint.identity import find_topic_differences
from flowcore.spark.checkpoint.lease import Leases
from flowcore.spark.checkpoint.offset_log import (
    find_lost_offsets,
    move_offsets,
    planned_batches,
    unread_offsets,
)
from flowcore.spark.checkpoint.plan_file import checkpoint_folder, read_plan_file, refuse_checkpoints
from flowcore.spark.context import names_by_broker

__all__ = ["LostRecords", "require_topics_fit", "skip_lost_records", "skipped_file"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LostRecords:
    """Offsets of one partition that a query has not read, and that its topic has removed.

    Attributes:
        first: The first lost offset.
        end: The offset of the oldest record that is left.
    """

    query: str
    topic: str
    partition: int
    first: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] from {self.first} to {self.end - 1}"


def skipped_file(flow: str, settings: Settings) -> Path:
    """The file with what was skipped: a JSON object in each line."""
    return settings.state_dir.absolute() / flow / "skipped.jsonl"


def require_topics_fit(plan: Plan, settings: Settings) -> None:
    """Check that each checkpoint's offsets are of the topics as they are, with all unread records.

    Raises:
        BrokerError: A broker cannot be reached.
        StateError: A topic was created again, or is in another cluster.
        LostRecordsError: Records are gone that a live query has not read.
    """
    differences: dict[str, None] = {}
    affected, lost = {}, []
    for query in plan.live_queries:
        checkpoint = checkpoint_folder(query, plan.flow, settings)
        different, gone = _compare_topics(query, checkpoint, settings)
        lost += gone
        if different:
            differences |= dict.fromkeys(different)
            affected[query.name] = checkpoint
    refuse_checkpoints(
        differences, affected, plan.flow,
        what="offsets count other records, so that some would be skipped or read twice; bring the topic or "
        "the address of its broker back",
    )  # fmt: skip
    if lost:
        msg = (
            f"flow {plan.flow!r} has not read {', '.join(map(str, lost))}, and the topic has removed these "
            "records: they would be missing in its results; bring them back, or continue without them: "
            "flowcore run FLOW --skip-lost"
        )
        raise LostRecordsError(msg)


def skip_lost_records(plan: Plan, settings: Settings) -> list[LostRecords]:
    """Let stopped live queries continue at the oldest records that are left, and return what they skip.

    Raises:
        BrokerError: A broker cannot be reached.
        RunError: A query runs.
    """
    skipped = []
    with Leases() as leases:
        for query in plan.live_queries:
            checkpoint = checkpoint_folder(query, plan.flow, settings)
            if not unread_offsets(checkpoint):
                continue
            leases.take(checkpoint)
            _, lost = _compare_topics(query, checkpoint, settings)
            _record(lost, skipped_file(plan.flow, settings))
            for topic in {each.topic for each in lost}:
                first = {each.partition: each.end for each in lost if each.topic == topic}
                partitions = {**unread_offsets(checkpoint)[topic], **first}
                move_offsets(checkpoint, topic, first, dict.fromkeys(partitions, MAX_TIMESTAMP_MS))
            skipped += lost
    return skipped


def _compare_topics(
    query: LiveQuery, checkpoint: Path, settings: Settings
) -> tuple[list[str], list[LostRecords]]:
    """How topics differ from those of a checkpoint, and which unread records they have removed."""
    if not planned_batches(checkpoint) and not unread_offsets(checkpoint):
        return [], []
    before = read_plan_file(checkpoint)
    now: dict[str, TopicIdentity | None] = {}
    first: dict[str, dict[int, int]] = {}
    for servers, names in names_by_broker(query.topics_read, settings).items():
        now |= identify_topics(servers, names)
        first |= begin_offsets_of_topics(servers, names)
    lost = [
        LostRecords(query.name, topic, partition, *offsets)
        for topic, begin in first.items()
        for partition, offsets in find_lost_offsets(checkpoint, topic, begin).items()
    ]
    return [*find_topic_differences(before.topics, now)] if before else [], lost


def _record(lost: list[LostRecords], file: Path) -> None:
    """Write records to the list before the queries skip them: after a crash they are listed again."""
    if not lost:
        return
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    with file.open("a") as lines:
        for each in lost:
            lines.write(json.dumps({"time": time, **asdict(each)}) + "\n")
            _log.warning("query %r skips lost records: %s", each.query, each)
        lines.flush()
        os.fsync(lines.fileno())
