"""Checks of a declaration: names, joins, unions, attributes, flush intervals, sources and sinks.

Each raises `PlanError` with the operator's name.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from types import EllipsisType
from typing import NoReturn

from flowcore.api.connectors import KafkaTopic, Sink, Source
from flowcore.api.operators import Operator, Read, StatefulOperator, Write
from flowcore.api.schema import Schema
from flowcore.durations import MILLISECOND, show_ms
from flowcore.errors import PlanError

__all__ = [
    "flush_interval_ms",
    "refuse",
    "require_alike",
    "require_attributes",
    "require_comparable",
    "require_cut",
    "require_deletable",
    "require_distinct",
    "require_flushable",
    "require_for_sink",
    "require_join",
    "require_keys",
    "require_name",
    "require_own_topic",
    "require_readable",
    "require_same_types",
    "require_ttl",
    "require_unambiguous",
    "require_writable",
]

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PLAIN = {
    "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "BINARY", "DATE",
    "TIMESTAMP", "TIMESTAMP_NTZ",
}  # fmt: skip
"""Types with one spelling each."""


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


def require_ttl(name: str, ttl: timedelta | EllipsisType | None) -> timedelta | None:
    """The time to live of a join of two unbounded streams, which must be written."""
    if isinstance(ttl, EllipsisType):
        refuse(
            f"operator {name!r} joins two unbounded streams without ttl=: each record would be kept for ever "
            "for partners that may come; pass ttl=timedelta(hours=1), or ttl=None if it is kept for ever, or "
            "use join_interval"
        )
    return ttl


def require_join(
    left: Operator, right: Operator, name: str, how: str, ttl: timedelta | EllipsisType | None
) -> None:
    """Check that the right side is bounded, and that the kind of join can run over the left side."""
    if not right.bounded:
        refuse(
            f"operator {name!r} needs a bounded input, and {right.name!r} is unbounded: it would wait for an "
            f"end that never comes; put the unbounded side left ({right.name}.join({left.name}, ...)), or "
            "give its topic until="
        )
    if ttl is not ...:
        refuse(
            f"operator {name!r}: ttl={ttl!r}, and {right.name!r} is bounded: its rows are read once, and no "
            "others come; leave ttl= out"
        )
    allowed = ("inner", "left", "semi", "anti") + (("right", "full") if left.bounded else ())
    if how not in allowed:
        why = (
            "rows of the right side without a partner are only known when the unbounded left side ends"
            if how in ("right", "full")
            else "there is no such join"
        )
        refuse(f"operator {name!r}: how={how!r}: {why}; pass one of {', '.join(allowed)}")


def require_keys(node: Operator) -> None:
    """Check that an operator can find state by its key, as far as its type is known.

    Raises:
        PlanError: A column of the key is a list or a map, or contains one.
    """
    if not isinstance(node, StatefulOperator) or node.compiled().value != "key-group":
        return
    known = node.inputs[0].types()
    for column in node.by:
        kind = known.get(column.lower(), "")
        if re.search(r"\b(ARRAY|MAP)<|^(ARRAY|MAP)$", kind.upper()):
            refuse(
                f"operator {node.name!r}: by={column!r} is {kind}: arrays, maps and structs with them have "
                "no equality for finding state, so a key would not be found again; use its parts as keys, "
                f"or text: 'to_json({column}) as key'"
            )


def require_comparable(left: Operator, right: Operator, name: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Check that values of columns joined on can be equal, as far as their types are known.

    Raises:
        PlanError: One column is a list, a map or a struct, and its partner is not.
    """
    mine, theirs = left.types(), right.types()
    for one, other in pairs:
        types = mine.get(one.lower()), theirs.get(other.lower())
        shapes = [None if kind is None else _shape(kind) for kind in types]
        if None not in shapes and shapes[0] != shapes[1]:
            refuse(
                f"operator {name!r}: {one!r} of {left.name!r} is {types[0]} and {other!r} of {right.name!r} "
                f"is {types[1]}: no value of one equals one of the other; join on columns of one type, for "
                "instance an item of the array or to_json(...) of it"
            )


def require_same_types(left: Operator, right: Operator, name: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Check that columns joined on by key group have one type, as far as their types are known.

    Raises:
        PlanError: Two columns have different types of single values.
    """
    mine, theirs = left.types(), right.types()
    for one, other in pairs:
        types = mine.get(one.lower(), ""), theirs.get(other.lower(), "")
        if types[0] != types[1] and _PLAIN.issuperset(types):
            refuse(
                f"operator {name!r}: {one!r} of {left.name!r} is {types[0]}, and {other!r} of {right.name!r} "
                f"is {types[1]}: equal values would be in different key groups; cast one of them, for "
                f"instance with_columns({other}='CAST({other} AS {types[0]})')"
            )


def _shape(kind: str) -> str:
    """``ARRAY``, ``MAP`` or ``STRUCT``, or nothing for a type of single values."""
    outer = kind.upper().partition("<")[0].strip()
    return outer if outer in ("ARRAY", "MAP", "STRUCT") else ""


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


def require_alike(inputs: Sequence[Operator], name: str, *, mixed: bool = False) -> None:
    """Check that inputs have the same columns and, unless ``mixed``, are all bounded or all unbounded."""
    first = inputs[0]
    for other in inputs[1:]:
        mine, theirs = ({c.lower() for c in node.columns} for node in (first, other))
        if mine != theirs:
            refuse(
                f"operator {name!r}: {first.name!r} and {other.name!r} differ in the columns "
                f"{', '.join(sorted(mine ^ theirs))}: rows of one would not fit the other; "
                "bring both to the same columns with select"
            )
        if first.bounded != other.bounded and not mixed:
            ends, never = (first, other) if first.bounded else (other, first)
            refuse(
                f"operator {name!r} mixes the bounded {ends.name!r} with the unbounded {never.name!r}: Spark "
                "runs one as a batch and the other as a stream; join the bounded one, or pass "
                f"{ends.name}.then({never.name}) if it is its history"
            )
        if first.updating or other.updating:
            node = first if first.updating else other
            refuse(
                f"operator {name!r}: records of {node.name!r} replace earlier ones and would be counted "
                "again in a union; unite the inputs before they are aggregated"
            )


def require_readable(name: str, source: Source) -> None:
    """Check that a source declares the form of its elements."""
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


def require_for_sink(name: str, sink: Sink) -> None:
    """Check that a sink declares nothing that only its readers can use."""
    if isinstance(sink, KafkaTopic) and sink.channels is not None:
        refuse(
            f"sink {name!r}: channels={sink.channels!r} of topic {sink.name!r}, and only its readers choose "
            "channels: nothing would be left out; declare them at the source that reads the topic"
        )
    if isinstance(sink, KafkaTopic) and sink.updating_by is not None:
        refuse(
            f"sink {name!r}: updating_by={sink.updating_by!r} of topic {sink.name!r}, which says how its "
            "readers take its records: it would have no effect; pass key= for the Kafka key, and declare "
            "updating_by at the source that reads the topic"
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


def require_cut(node: Operator, name: str, topic: KafkaTopic, schema: Schema | None) -> Schema:
    """Check that a topic can carry a stream to the next query, and return the columns of its values."""
    if node.bounded:
        refuse(
            f"cut {name!r}: {node.name!r} is bounded, and a stage hands its result over as a whole: there is "
            "nothing to cut; leave .through(...) out"
        )
    if topic.elements not in ("plain", "tagged"):
        refuse(
            f"cut {name!r}: topic {topic.name!r} has elements={topic.elements!r}, and timestamps and "
            "watermarks cross a cut: they would be lost; leave elements out"
        )
    if topic.updating_by is not None:
        refuse(
            f"cut {name!r}: topic {topic.name!r} has updating_by={topic.updating_by!r}, and what replaces "
            f"what is known from {node.name!r}: deletions cross a cut as records; leave updating_by out"
        )
    if topic.until is not None or topic.start != "earliest":
        refuse(
            f"cut {name!r}: topic {topic.name!r} is read from start={topic.start!r} until={topic.until!r}: "
            "records that were written to it would be lost; leave start and until out"
        )
    if schema is None:
        refuse(
            f"cut {name!r}: the types of {', '.join(node.columns)} are not known before the flow runs: the "
            "next query could not read them; pass schema='id BIGINT, price DOUBLE'"
        )
    have, want = ({column.lower() for column in columns} for columns in (node.columns, schema.names))
    if have != want:
        refuse(
            f"cut {name!r}: its schema and the columns of {node.name!r} differ in "
            f"{', '.join(sorted(have ^ want))}: a column would be lost, or null in each record; name exactly "
            f"{', '.join(node.columns)}, or select fewer before it"
        )
    return schema


def require_own_topic(node: Operator, operators: Iterable[Operator]) -> None:
    """Check that no other source or sink of the flow uses the topic of a cut."""
    topic = node.topic
    for other in operators if topic else ():
        pair = (node, other)
        cuts = [each for each in pair if isinstance(each, Write) and each.is_cut]
        is_pair = isinstance(node, Read) and node.written_by is other
        if topic and other.topic and other.topic.name == topic.name and cuts and not is_pair:
            user = other.name if cuts[0] is node else node.name
            refuse(
                f"operator {node.name!r}: {cuts[0].name!r} cuts the flow with topic {topic.name!r}, which "
                f"{user!r} uses too: records of two streams would mix, or a query would read what it writes "
                "without end; give the cut a topic of its own"
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
        PlanError: The interval is not a length of time, is negative, or has a part of a millisecond.

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


def ttl_ms(operator: str, ttl: timedelta | None) -> int | None:
    """Convert a time to live that was declared with an operator to milliseconds.

    Raises:
        PlanError: The time to live is not a length of time, is not positive, or has a part of a millisecond.
    """
    if ttl is None:
        return None
    if not isinstance(ttl, timedelta) or ttl < MILLISECOND or ttl % MILLISECOND:
        refuse(
            f"operator {operator!r}: ttl={ttl!r} is not a positive number of whole milliseconds: state "
            "would be removed at once; pass for instance timedelta(hours=1)"
        )
    return ttl // MILLISECOND


def require_flushable(node: Operator) -> None:
    """Check that an operator with an interval of its own can be buffered.

    Raises:
        PlanError: The operator cannot be buffered.
    """
    if not node.flush_ms:
        return
    flush = show_ms(node.flush_ms)
    if node.bounded:
        refuse(
            f"operator {node.name!r}: flush={flush}, and its input is bounded: it emits once, at the end of "
            "its input, so that the interval would have no effect; leave flush out"
        )
    found = node.flush_obstacle()
    if found is not None:
        refuse(
            f"operator {node.name!r}: flush={flush}, and {found.why}: results that nothing replaces would "
            f"be lost; {found.change}, or leave flush out"
        )
