"""The channels of a flow's tagged sources, from the checkpoints of its queries, which may be running."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowcore.api.connectors import KafkaTopic
from flowcore.api.operators import Read
from flowcore.channels import partition_of
from flowcore.elements import WatermarkStatus
from flowcore.errors import BrokerError, ConfigurationError, PlanError, RunError, StateError
from flowcore.kafka.elements import ElementWriter
from flowcore.kafka.topics import partition_counts
from flowcore.keyed.task_elements import count_ignored
from flowcore.planner.model import LiveQuery
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.signatures import require_control_key
from flowcore.spark.checkpoint.plan_file import checkpoint_folder
from flowcore.spark.checkpoint.storage import WATERMARKS
from flowcore.spark.context import broker_of
from flowcore.spark.run.inspection import read_event_time
from flowcore.spark.run.session import live_session, session
from flowcore.stored_json import read_json
from flowcore.watermarks.merge import MergedWatermark, PartitionWatermark

__all__ = ["TaggedSource", "read_tagged_sources", "reset_channel"]


@dataclass(frozen=True, slots=True)
class TaggedSource:
    """A source whose watermarks arrive in its topic, as of the last batch of its query.

    Attributes:
        channels: By partition and sender; a partition without a channel has the sender "".
        ignored: How many elements were of channels that do not count.
    """

    query: str
    name: str
    topic: KafkaTopic
    channels: Mapping[tuple[str, str], PartitionWatermark]
    ignored: int


def read_tagged_sources(plan: Plan, settings: Settings) -> list[TaggedSource]:
    """Read the tagged sources of a flow.

    Raises:
        PlanError: No source takes watermarks from its topic.
        StateError: The queries have no checkpoint, or a checkpoint cannot be read.
    """
    queries = {
        query: checkpoint_folder(query, plan.flow, settings)
        for query in plan.live_queries
        if any(map(_takes_watermarks, query.sources))
    }
    used = {query: folder for query, folder in queries.items() if (folder / "metadata").exists()}
    if queries and not used:
        msg = (
            f"flow {plan.flow!r} has no checkpoint in {next(iter(queries.values())).parent}: no channel is "
            "known; run the flow first, or pass its folder, --set state.dir=..."
        )
        raise StateError(msg)
    with ExitStack() as opened:
        found = [
            each
            for query, checkpoint in used.items()
            for each in _read_query(query, checkpoint, _kept_sources(checkpoint, settings, opened))
        ]
    if not found:
        msg = (
            f"flow {plan.flow!r} has no operator or sink that takes watermarks from a topic: no channel "
            "holds event time; those downstream of a source with elements='tagged' and no watermark= do"
        )
        raise PlanError(msg)
    return found


def reset_channel(
    sources: list[TaggedSource], sender: str, settings: Settings
) -> Iterator[tuple[TaggedSource, int]]:
    """Write to all partitions of the topics of a channel that it is idle.

    Yields:
        The sources that know the channel, and the number of partitions that were written.

    Raises:
        ConfigurationError: No source knows the channel.
        BrokerError: A broker cannot be reached, or does not take the element.
    """
    knowing = [each for each in sources if any(sender == known for _, known in each.channels)]
    if not knowing:
        known = sorted({name for each in sources for _, name in each.channels if name})
        msg = (
            f"channel {sender!r} is not known to {', '.join(each.name for each in sources)}: it holds no "
            f"event time; known are {', '.join(map(repr, known)) or 'none'}"
        )
        raise ConfigurationError(msg)
    for source in knowing:
        topic, servers = source.topic, broker_of(source.topic, settings)
        partitions = partition_counts(servers, [topic.name])[topic.name]
        if partitions is None:
            msg = f"topic {topic.name!r} does not exist at {servers}: nothing was reset; check the address"
            raise RunError(msg)
        key = require_control_key(settings, [topic.name] if topic.signed else [])
        with ElementWriter(servers, {topic: partitions}, sender, key) as writer:
            writer.write([WatermarkStatus(idle=True)])
        if writer.has_undelivered:
            msg = (
                f"{servers} has not taken the status of channel {sender!r} for topic {topic.name!r} in time: "
                "it may still hold event time; repeat the command"
            )
            raise BrokerError(msg)
        yield source, partitions


def _takes_watermarks(node: Read) -> bool:
    return node.topic is not None and node.topic.elements == "tagged" and node.watermark is None


def _kept_sources(checkpoint: Path, settings: Settings, opened: ExitStack) -> Mapping[str, Any]:
    """The watermarks by source, as kept by the driver or else by a key group."""
    file = checkpoint / WATERMARKS
    if file.exists():
        try:
            kept: Mapping[str, Any] = read_json(file)["sources"]
        except (ValueError, KeyError, TypeError) as error:
            msg = (
                f"{file} cannot be read ({error}): the channels are unknown; bring the file back from a copy "
                "of the checkpoint, or stop the flow and remove it"
            )
            raise StateError(msg) from error
        return kept
    spark = opened.enter_context(session(settings, "watermarks"))
    return read_event_time(live_session(spark, settings), checkpoint)


def _read_query(query: LiveQuery, checkpoint: Path, kept: Mapping[str, Any]) -> Iterator[TaggedSource]:
    left_out = count_ignored(checkpoint)
    for node in filter(_takes_watermarks, query.sources):
        mine = kept.get(node.name)
        # With ``merged`` it has a strategy, which is removed at the next start.
        if mine is None or node.topic is None or "merged" in mine:
            continue
        channels = {
            (partition_of(name), name.partition("/")[2]): each
            for name, each in MergedWatermark.from_snapshot(mine).channels().items()
        }
        ignored = max(
            mine.get("ignored", 0),
            sum(count for channel, count in left_out.items() if channel.source == node.name),
        )
        yield TaggedSource(query.name, node.name, node.topic, channels, ignored)
