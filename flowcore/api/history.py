"""Histories of topics: the checks of the seam between a bounded stream and the topic that continues it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from flowcore.api.checks import refuse, require_alike
from flowcore.api.connectors import KafkaTopic, Position
from flowcore.api.history_operator import WithHistory
from flowcore.api.operators import Operator, Read
from flowcore.durations import MILLISECOND

__all__ = ["build_history"]

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def build_history(
    history: Operator, live: Operator, name: str, fields: Mapping[str, Any], at: datetime | None
) -> WithHistory:
    """Check that a topic can continue a bounded stream, and make the operator.

    Args:
        fields: The fields of any operator.
        at: The event time at which the history ends and the topic begins.

    Raises:
        PlanError: The streams are not a bounded stream and the source of a topic, their columns differ, or
            records at the seam would be counted twice or not at all.
    """
    topic = _require_topic(history, live, name)
    require_alike((live, history), name, mixed=True)
    live_types, history_types = live.types(), history.types()
    for column, kind in live_types.items():
        if history_types.get(column, kind) != kind:
            refuse(
                f"operator {name!r}: column {column!r} is {history_types[column]} in the history "
                f"{history.name!r} and {kind} in {live.name!r}: its values might not fit; cast it in the "
                "history"
            )
    if at is None:
        _require_start(history, topic, name)
        return WithHistory(**fields)
    return WithHistory(**fields, at_ms=_parse_seam(live, topic, name, at))


def _require_topic(history: Operator, live: Operator, name: str) -> KafkaTopic:
    if not history.bounded and live.bounded:
        refuse(
            f"operator {name!r}: {history.name!r} is unbounded, and {live.name!r} ends: no record of "
            f"{live.name!r} would be read; the history comes first: {live.name}.then({history.name}, ...)"
        )
    if not history.bounded:
        refuse(
            f"operator {name!r}: the history {history.name!r} is unbounded: it would never end, and no "
            f"record of {live.name!r} would be read; give its topic until=, or unite both with union"
        )
    if live.bounded:
        refuse(
            f"operator {name!r}: {live.name!r} is bounded, and only an unbounded stream begins with a "
            "history; unite both with union, or remove until= from its topic"
        )
    topic = live.topic
    if not isinstance(live, Read) or topic is None:
        refuse(
            f"operator {name!r}: {live.name!r} is not a source, so its first records would be processed "
            "before the history; pass what flow.read(...) returned, of a topic without deduplicate=True, and "
            "put other operators after then(...)"
        )
    if live.updating:
        refuse(
            f"operator {name!r}: records of {live.name!r} replace earlier ones of their Kafka key, and rows "
            f"of the history {history.name!r} have none: it would not be known what they replace; start the "
            "topic at 'earliest', which is its own history if it is compacted"
        )
    if topic.elements == "tagged":
        refuse(
            f"operator {name!r}: topic {topic.name!r} of {live.name!r} has tagged elements, whose timestamps "
            "and watermarks the history does not have; write it with elements='plain', and give the source "
            "event_time= and watermark="
        )
    return topic


def _parse_seam(live: Operator, topic: KafkaTopic, name: str, at: object) -> int:
    """The event time that divides history and topic."""
    if not isinstance(at, datetime) or at.tzinfo is None:
        refuse(
            f"operator {name!r}: at={at!r} is not a time with its zone: it would not be known where the "
            "history ends; pass datetime(..., tzinfo=UTC)"
        )
    if topic.event_time is None:
        refuse(
            f"operator {name!r}: at={at.isoformat()} is an event time, and topic {topic.name!r} of "
            f"{live.name!r} does not declare which column has it; pass event_time= to the topic"
        )
    start = topic.start
    if start == "latest" or (isinstance(start, datetime) and start > at):
        refuse(
            f"operator {name!r}: the history ends at {at.isoformat()}, and {live.name!r} is read from "
            f"start={_show(start)}: records between them would be lost; give its topic an earlier start, "
            "such as 'earliest': records before the seam are left out"
        )
    return (at - _EPOCH) // MILLISECOND


def _require_start(history: Operator, topic: KafkaTopic, name: str) -> None:
    """Check that the topic is read from where the history ends."""
    start = topic.start
    same = [
        each.topic
        for each in history.upstream
        if isinstance(each, Read) and each.topic is not None and each.topic.name == topic.name
    ]
    for read in same:
        if read.until != start:
            refuse(
                f"operator {name!r}: the history reads topic {topic.name!r} until={_show(read.until)}, and "
                f"the stream from start={_show(start)}: records between them would be counted twice or not "
                "at all; pass the same offsets or the same time to both"
            )
    if isinstance(start, Mapping) or (isinstance(start, datetime) and same):
        return
    refuse(
        f"operator {name!r}: topic {topic.name!r} is read from start={_show(start)}, and nothing says where "
        f"the history {history.name!r} ends: records could be counted twice or not at all; pass at= with the "
        "event time at which it ends, or start={partition: offset} of the first records that it does not have"
    )


def _show(place: Position | None) -> str:
    return place.isoformat() if isinstance(place, datetime) else repr(place)
