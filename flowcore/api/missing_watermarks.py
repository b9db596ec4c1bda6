"""Find out why an operator over unbounded input cannot use event time, or would take its rows for late."""

from flowcore.api.kafka_topic import KafkaTopic
from flowcore.api.operators import JoinRegular, Operator, Ranked, Read, WithEventTime, find_timed
from flowcore.api.window_operator import Window

__all__ = ["find_missing_watermarks", "find_old_rows"]


def find_missing_watermarks(
    node: Operator,
    name: str,
    *,
    crossed: bool = False,
    only_event_time: bool = False,
    only_timestamps: bool = False,
) -> str | None:
    """Why an operator over unbounded input cannot use event time: no timestamps, or no watermarks.

    Args:
        crossed: The stream crosses a cut, which gives results of an aggregate the time of the newest record.
        only_event_time: The operator cannot use processing time instead.
        only_timestamps: The operator needs timestamps, and no watermarks.
    """
    instead = "" if only_event_time else ", or use time='processing'"
    for each in find_timed(node):
        if each.bounded:
            continue
        if isinstance(each, WithEventTime) and not each.strategy.generates and not only_timestamps:
            return (
                f"operator {name!r} uses event time, and {each.name!r} makes no watermarks "
                f"({each.strategy}): event time would never advance; pass for instance "
                f"watermark=bounded_out_of_orderness(timedelta(seconds=4)){instead}"
            )
        if not each.keeps_timestamps and not (crossed and each.has_newest_timestamp):
            return (
                f"operator {name!r} uses event time, and downstream of {each.name!r} a record has no "
                f"timestamp of its own: it would have no place in time; {_suggest_place(each, name)}{instead}"
            )
        topic = each.topic
        if not isinstance(each, Read) or topic is None:
            continue
        if each.written_by is not None and topic.watermark is None:
            if topic.event_time is None:
                missing = find_missing_watermarks(
                    each.written_by,
                    name,
                    crossed=True,
                    only_event_time=only_event_time,
                    only_timestamps=only_timestamps,
                )
                if missing is not None:
                    return missing
            continue
        strategy = topic.watermark
        if only_timestamps or (strategy.generates if strategy is not None else topic.elements == "tagged"):
            continue
        return (
            f"operator {name!r} uses event time, and the source {each.name!r} sets no watermarks: "
            f"event time would never advance; {_suggest_watermark(topic)}{instead}"
        )
    return None


def find_old_rows(node: Operator) -> Operator | None:
    """The operator upstream whose rows may be older than the watermarks that its sources set; None if none.

    Partners of a regular join arrive at any time, and a row that gets another rank is emitted again.
    """
    waiting = [node]
    for each in waiting:
        if each.bounded:  # a table has no watermarks
            continue
        if _emits_old_rows(each):
            return each
        # The watermarks of a cut are those of its stream, unless its topic has a strategy of its own.
        cut = each.written_by if isinstance(each, Read) and each.watermark is None else None
        above = (cut,) if cut is not None else each.inputs
        if not isinstance(each, WithEventTime | Window):  # these give their rows a time
            waiting += [parent for parent in above if parent not in waiting]
    return None


def _emits_old_rows(node: Operator) -> bool:
    return isinstance(node, JoinRegular) or (isinstance(node, Ranked) and node.rank is not None)


def _suggest_place(without: Operator, name: str) -> str:
    """Where an operator finds the timestamps that records have lost, for an error message."""
    if isinstance(without, JoinRegular):
        return f"use join_interval(...) in place of {without.name!r}"
    before = f"put {name!r} before {without.name!r}"
    if _emits_old_rows(without):
        return before
    return (
        f"{before}, or cut the flow downstream of {without.name!r} with "
        ".through(KafkaTopic('topic', event_time='bid_time'))"
    )


def _suggest_watermark(topic: KafkaTopic) -> str:
    """How a source can set watermarks, for an error message."""
    # A tombstone has no value, so that its event time is that of its message.
    tombstones = topic.updating_by is not None
    event_time = "" if tombstones else "event_time='bid_time', "
    other = "" if tombstones else ", or use with_event_time(...)"
    return (
        f"pass watermark= to its topic, for instance KafkaTopic({topic.name!r}, ..., {event_time}"
        f"watermark=bounded_out_of_orderness(timedelta(seconds=4))){other}"
    )
