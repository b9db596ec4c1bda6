"""Offsets: resolve the start and end positions of topics.

A client resolves positions once, so that a bounded stage reads exactly the records that its manifest names,
whenever Spark reads them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

from flowcore.api.connectors import KafkaTopic, Position
from flowcore.errors import PlanError
from flowcore.kafka.topics import begin_offsets, end_offsets, offsets_at

__all__ = ["offset_range", "offsets_json", "start_offsets"]

_Offsets = dict[int, int]
"""By partition."""


def start_offsets(topic: KafkaTopic, servers: str) -> _Offsets:
    """The first offset to read of each partition."""
    return _resolve(topic, topic.start, servers)


def offset_range(topic: KafkaTopic, servers: str) -> tuple[_Offsets, _Offsets]:
    """First offset and end (exclusive) of each partition of a bounded topic.

    Raises:
        PlanError: The end of a partition is before its start, or after its last record.
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


def offsets_json(topic: KafkaTopic, offsets: _Offsets) -> str:
    """Offsets as an option of Spark's Kafka source."""
    return json.dumps({topic.name: {str(partition): offset for partition, offset in sorted(offsets.items())}})


def _resolve(topic: KafkaTopic, place: Position, servers: str) -> _Offsets:
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
