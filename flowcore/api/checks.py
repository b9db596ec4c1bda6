"""Checks of a declaration: names, joins, unions, attributes, flush intervals, sources and sinks.

Each raises `PlanError` with the operator's name.
"""

import logging
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import NoReturn

from flowcore.api.connectors import KafkaTopic, Sink, Source
from flowcore.api.operators import Operator
from flowcore.durations import MILLISECOND, show_duration
from flowcore.errors import PlanError

__all__ = [
    "flush_interval_ms",
    "refuse",
    "require_alike",
    "require_attributes",
    "require_deletable",
    "require_distinct",
    "require_flushable",
    "require_join",
    "require_name",
    "require_readable",
    "require_unambiguous",
    "require_writable",
]

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def refuse(message: str) -> NoReturn:
    raise PlanError(message)


def require_name(kind: str, name: str) -> None:
    """Check that a name can be part of a path, a topic and an asset key."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        refuse(
            f"{kind} name {name!r} cannot name a folder or a checkpoint: use letters, digits, '_', "
            "'-' and '.', beginning with a letter"
        )


def require_distinct(operator: str, columns: Sequence[str]) -> None:
    """Check that no two columns have one name; Spark compares names without case."""
    lower = [column.lower() for column in columns]
    twice = sorted({column for column in columns if lower.count(column.lower()) > 1})
    if twice:
        refuse(
            f"operator {operator!r} would have the output column {twice[0]!r} twice: downstream operators "
            f"could not say which one they mean; rename one with '{twice[0]} as another'"
        )


def require_join(left: Operator, right: Operator, name: str, how: str) -> None:
    """Check that the right side is bounded, and that the kind of join can run over the left side."""
    if not right.bounded:
        refuse(
            f"operator {name!r} needs a bounded input, and {right.name!r} is unbounded: it would wait for an "
            f"end that never comes; put the unbounded side left ({right.name}.join({left.name}, ...)), or "
            "give its topic until="
        )
    allowed = ("inner", "left", "semi", "anti") + (("right", "full") if left.bounded else ())
    if how not in allowed:
        why = (
            "rows of the right side without a partner are only known when the unbounded left side ends"
            if how in ("right", "full")
            else "there is no such join"
        )
        refuse(f"operator {name!r}: how={how!r}: {why}; pass one of {', '.join(allowed)}")


def require_unambiguous(left: Operator, right: Operator, name: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Check that both sides of a join share only the columns joined on."""
    used = {column.lower() for _, column in pairs}
    known = {column.lower() for column in left.columns}
    both = [c for c in right.columns if c.lower() in known and c.lower() not in used]
    if both:
        refuse(
            f"operator {name!r}: both inputs {left.name!r} and {right.name!r} have the column {both[0]!r}, "
            "which is not joined on: downstream operators could not say which one they mean; rename it "
            f"before the join with select(..., '{both[0]} as {right.name}_{both[0]}'), or add it to on="
        )


def require_alike(inputs: Sequence[Operator], name: str) -> None:
    """Check that inputs of a union have the same columns and are all bounded or all unbounded."""
    first = inputs[0]
    for other in inputs[1:]:
        mine, theirs = ({c.lower() for c in node.columns} for node in (first, other))
        if mine != theirs:
            refuse(
                f"operator {name!r}: {first.name!r} and {other.name!r} differ in the columns "
                f"{', '.join(sorted(mine ^ theirs))}: rows of one would not fit the other; "
                "bring both to the same columns with select"
            )
        if first.bounded != other.bounded:
            ends, never = (first, other) if first.bounded else (other, first)
            refuse(
                f"operator {name!r} mixes the bounded {ends.name!r} with the unbounded {never.name!r}: Spark "
                "runs one as a batch and the other as a stream; join the bounded one, or write it to "
                "the stream's topic"
            )
        if first.updating or other.updating:
            node = first if first.updating else other
            refuse(
                f"operator {name!r}: records of {node.name!r} replace earlier ones and would be counted "
                "again in a union; unite the inputs before they are aggregated"
            )


def require_readable(name: str, source: Source) -> None:
    """Check that the form of a source's elements is known."""
    if isinstance(source, KafkaTopic) and source.elements == "auto":
        refuse(
            f"operator {name!r}: elements='auto' of topic {source.name!r} is decided by the plan of the flow "
            "that writes it, and unknown here: timestamps would be read as values, or values as timestamps; "
            "pass 'tagged' or 'value-only', as `flowcore plan` shows for that flow"
        )


def require_writable(node: Operator, name: str, sink: Sink, key: tuple[str, ...] | None) -> None:
    """Check that a sink can store the output of ``node``."""
    if not node.updating:
        return
    if not isinstance(sink, KafkaTopic):
        refuse(
            f"sink {name!r}: {node.name!r} replaces its earlier output, which files cannot do: every change "
            "would be one more row; write to a KafkaTopic"
        )
    if key is None:
        refuse(
            f"sink {name!r}: {node.name!r} replaces its earlier output, and no key says which record "
            f"replaces which: readers would count both; pass key= one of {', '.join(node.columns)}"
        )


def require_deletable(name: str, sink: Sink, deleted: str, key: tuple[str, ...] | None) -> None:
    """Check that a record can delete an earlier one in a sink."""
    if not isinstance(sink, KafkaTopic):
        refuse(
            f"sink {name!r}: deleted={deleted!r}, and files keep every row: nothing would be deleted; write "
            "to a KafkaTopic"
        )
    if not key or deleted in key:
        what = "is part of its key" if key else "no key says which record is deleted"
        refuse(
            f"sink {name!r}: deleted={deleted!r}, and {what}: a tombstone would delete nothing; pass key= "
            "other columns"
        )


def require_attributes(node: Operator) -> None:
    """Check that the attributes can be kept, and log those for which a default is assumed."""
    attributes = node.attributes()
    if attributes.output_only_at_end and not node.bounded:
        source = node.live_sources[0]
        refuse(
            f"operator {node.name!r} declares output_only_at_end=True, and its source {source.name!r} is "
            "unbounded: it would wait for an end that never comes; give the topic until=, or drop the "
            "attribute"
        )
    obstacle = node.checkpoint_obstacle() if attributes.output_on_checkpoint and not node.bounded else None
    if obstacle is not None:
        refuse(
            f"operator {node.name!r} declares output_on_checkpoint=True, and {obstacle.why}: it would emit "
            "nothing for a checkpoint; drop the attribute, or let a flush buffer keep its output "
            "(output_idempotent, a key, and flush=)"
        )
    for name in node.undeclared_attributes():
        _log.debug(
            "operator %r does not declare %s: %s is assumed, which is always safe",
            node.name, name, getattr(attributes, name),
        )  # fmt: skip


def flush_interval_ms(operator: str, flush: timedelta | None) -> int | None:
    """Convert the interval that was declared with an operator to milliseconds.

    Raises:
        PlanError: It is not a length of time, is negative, or has a part of a millisecond.

    Source: FLIP-365, Introduce flush interval to adjust the interval of emitting results.
    """
    if flush is None:
        return None
    if not isinstance(flush, timedelta) or flush < timedelta(0) or flush % MILLISECOND:
        refuse(
            f"operator {operator!r}: flush={flush!r} is not a whole number of milliseconds from 0 up: its "
            "output could not be buffered that long; pass for instance timedelta(minutes=2), or "
            "timedelta(0) to buffer nothing"
        )
    return flush // MILLISECOND


def require_flushable(node: Operator) -> None:
    """Check that an operator with an interval of its own can be buffered.

    Raises:
        PlanError: It cannot.
    """
    found = node.flush_obstacle() if node.flush_ms and not node.bounded else None
    if found is not None:
        flush = show_duration(timedelta(milliseconds=node.flush_ms or 0))
        refuse(
            f"operator {node.name!r}: flush={flush}, and {found.why}: results that nothing replaces would "
            f"be lost; {found.change}, or leave flush out"
        )
