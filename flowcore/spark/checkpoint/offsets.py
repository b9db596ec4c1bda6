"""Offsets: which records of a topic does a start and an end position mean?

Positions are resolved once, by a client, so that a bounded stage reads exactly the records that its
manifest names, and a plan does not depend on when Spark looks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from flowcore.api.connectors import KafkaTopic, Position
from flowcore.errors import PlanError
from flowcore.kafka.topics import begin_offsets, end_offsets, offsets_at

__all__ = ["committed_offsets", "offset_range", "offsets_json", "start_offsets"]

Offsets = dict[int, int]


def start_offsets(topic: KafkaTopic, servers: str) -> Offsets:
    """The first offset to read of each partition."""
    return _resolve(topic, topic.start, servers)


def committed_offsets(checkpoint: Path) -> dict[str, Offsets]:
    """By topic the first offsets that the batch after the last committed one reads, as a checkpoint tells.

    Nothing is known if there is no checkpoint, or nothing is committed.
    """
    numbers = (int(file.name) for file in (checkpoint / "commits").glob("*") if file.name.isdigit())
    latest = max(numbers, default=None)
    planned = checkpoint / "offsets" / str(latest)
    if latest is None or not planned.exists():
        return {}
    found: dict[str, Offsets] = {}
    for line in planned.read_text().splitlines()[2:]:
        for topic, offsets in json.loads(line).items() if line.startswith("{") else ():
            if isinstance(
                offsets, Mapping
            ):  # a topic's, and not those of `flowcore.spark.checkpoint.backlog_status`
                found[topic] = {int(number): offset for number, offset in offsets.items()}
    return found


def offset_range(topic: KafkaTopic, servers: str) -> tuple[Offsets, Offsets]:
    """First offset and end (exclusive) of each partition of a bounded topic.

    Raises:
        PlanError: The end of a partition lies before its start, or beyond its last record.
    """
    start = start_offsets(topic, servers)
    end = _resolve(topic, topic.until or "latest", servers)
    last = end_offsets(servers, topic.name)
    for partition, first in start.items():
        if not first <= end[partition] <= last[partition]:
            msg = (
                f"topic {topic.name!r} partition {partition}: start {first}, until {end[partition]}, and its "
                f"last record is before {last[partition]}: the stage would wait for records that may never "
                "come; pass start <= until <= the topic's end"
            )
            raise PlanError(msg)
    return start, end


def offsets_json(topic: KafkaTopic, offsets: Offsets) -> str:
    """Offsets as the Kafka source's options take them."""
    return json.dumps({topic.name: {str(partition): offset for partition, offset in sorted(offsets.items())}})


def _resolve(topic: KafkaTopic, place: Position, servers: str) -> Offsets:
    match place:
        case "earliest":
            return begin_offsets(servers, topic.name)
        case "latest":
            return end_offsets(servers, topic.name)
        case datetime():
            return offsets_at(servers, topic.name, int(place.timestamp() * 1000))
        case Mapping():
            begin = begin_offsets(servers, topic.name)
            unknown = sorted(set(place) - set(begin))
            if unknown:
                msg = (
                    f"topic {topic.name!r} has the partitions {sorted(begin)}, not {unknown}: their offsets "
                    "would be ignored; name partitions that exist"
                )
                raise PlanError(msg)
            return begin | dict(place)
