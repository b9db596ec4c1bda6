"""Check that stopped queries can continue in their topics, or skip the records that a topic has lost.

A topic removes records by age, by size or by hand, and a broker that fails may lose the newest ones. Spark
refuses to continue there. A start is refused with the lost offsets, or continues after them and lists what it
skipped.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from flowcore.errors import LostRecordsError
from flowcore.kafka.topics import (
    TopicIdentity,
    begin_offsets_of_topics,
    end_offsets_of_topics,
    identify_topics,
)
from flowcore.planner.model import LiveQuery
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.checkpoint.identity import find_topic_differences
from flowcore.spark.checkpoint.lease import Leases
from flowcore.spark.checkpoint.offset_log import (
    find_lost_offsets,
    move_offsets,
    planned_batches,
    planned_ends,
    unread_offsets,
)
from flowcore.spark.checkpoint.plan_file import checkpoint_folder, read_plan_file, refuse_checkpoints
from flowcore.spark.context import names_by_broker

__all__ = ["LostRecords", "require_topics_fit", "skip_lost_records", "skipped_file"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LostRecords:
    """Where a query would read a partition next, and where it can: the records between are gone.

    Attributes:
        first: The offset that the query would read next.
        end: The offset of the oldest record that is left, or, before ``first``, the end of the topic.
    """

    query: str
    topic: str
    partition: int
    first: int
    end: int

    def __str__(self) -> str:
        if self.end < self.first:
            return f"{self.topic}[{self.partition}] from {self.end} to {self.first - 1} (read before)"
        return f"{self.topic}[{self.partition}] from {self.first} to {self.end - 1}"


def skipped_file(flow: str, settings: Settings) -> Path:
    """The file with what was skipped: a JSON object in each line."""
    return settings.state_dir.absolute() / flow / "skipped.jsonl"


def require_topics_fit(plan: Plan, settings: Settings) -> None:
    """Check that each checkpoint's offsets are of the topics as they are, with all unread records.

    Raises:
        BrokerError: A broker cannot be reached.
        StateError: A topic was created again, or is in another cluster.
        LostRecordsError: Records are gone that a live query has not read, or that it has read.
    """
    lost = _find_lost_records(plan, settings)
    if lost:
        msg = (
            f"flow {plan.flow!r} cannot continue: records are gone, {', '.join(map(str, lost))}: those that "
            "it has not read would be missing in its results, and new ones under the offsets of those that "
            "it has read be skipped; bring them back, or continue without them: flowcore run "
            "MODULE:FLOW --skip-lost"
        )
        raise LostRecordsError(msg)


def skip_lost_records(plan: Plan, settings: Settings) -> list[LostRecords]:
    """Let stopped live queries continue where their topics have records, and return what they skip.

    Raises:
        BrokerError: A broker cannot be reached.
        StateError: A topic was created again, or is in another cluster; nothing was skipped.
        RunError: A query runs.
    """
    with Leases() as leases:
        checkpoints = {
            query.name: checkpoint_folder(query, plan.flow, settings) for query in plan.live_queries
        }
        leases.take(*(checkpoint for checkpoint in checkpoints.values() if unread_offsets(checkpoint)))
        lost = _find_lost_records(plan, settings)
        _record(lost, skipped_file(plan.flow, settings))
        for query, topic in {(each.query, each.topic) for each in lost}:
            mine = [each for each in lost if (each.query, each.topic) == (query, topic)]
            first = {each.partition: each.end for each in mine if each.end > each.first}
            last = {each.partition: each.end for each in mine if each.end < each.first}
            move_offsets(checkpoints[query], topic, first, last)
    return lost


def _find_lost_records(plan: Plan, settings: Settings) -> list[LostRecords]:
    """Compare the offsets of all queries with their topics, which must be the same ones."""
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
    return lost


def _compare_topics(
    query: LiveQuery, checkpoint: Path, settings: Settings
) -> tuple[list[str], list[LostRecords]]:
    """How topics differ from those of a checkpoint, and which records they have no more."""
    if not planned_batches(checkpoint) and not unread_offsets(checkpoint):
        return [], []
    before = read_plan_file(checkpoint)
    # A query that runs may plan and commit batches meanwhile: its end is read before the ends of its topics,
    # and where it is after their begins.
    planned = planned_ends(checkpoint)
    now: dict[str, TopicIdentity | None] = {}
    first: dict[str, dict[int, int]] = {}
    last: dict[str, dict[int, int]] = {}
    for servers, names in names_by_broker(query.topics_read, settings).items():
        now |= identify_topics(servers, names)
        first |= begin_offsets_of_topics(servers, names)
        last |= end_offsets_of_topics(servers, names)
    unread = unread_offsets(checkpoint)
    lost = [
        LostRecords(query.name, topic, *offsets)
        for topic in first.keys() & unread.keys()
        for offsets in find_lost_offsets(
            unread[topic], planned.get(topic, {}), first[topic], last.get(topic, {})
        )
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
