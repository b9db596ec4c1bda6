"""Checks of sources, sinks and cuts: who may read and write what.

Each raises `PlanError` with the name of the operator, the sink or the cut.
"""

import posixpath
from collections.abc import Iterable
from pathlib import PurePosixPath

from flowcore.api.checks import refuse
from flowcore.api.connectors import Files, KafkaTopic, Sink, Source
from flowcore.api.missing_watermarks import find_old_rows
from flowcore.api.operators import Operator, Read, Write
from flowcore.api.schema import Schema

__all__ = [
    "find_folder",
    "require_apart",
    "require_connector",
    "require_cut",
    "require_deletable",
    "require_for_sink",
    "require_no_key",
    "require_no_loop",
    "require_own_topic",
    "require_readable",
    "require_writable",
]

_OF_SOURCES = ("start", "until", "event_time", "watermark", "deduplicate", "flushed", "isolation")


def require_connector(kind: str, name: object, connector: object, kinds: tuple[type, ...]) -> None:
    """Check that a source or a sink is one, and that files have a path."""
    if isinstance(connector, Files):
        _require_path(kind, name, connector)
    if isinstance(connector, kinds):
        return
    text = connector if isinstance(connector, str) else name
    schema = ", schema='id BIGINT, price DOUBLE'" if kind == "source" else ""
    refuse(
        f"{kind} {name!r}: {connector!r} is not a {kind}: it would not be known where it is; pass for "
        f"instance KafkaTopic({text!r}{schema}), or Parquet({text!r}{schema})"
    )


def _require_path(kind: str, name: object, files: Files) -> None:
    path: object = files.path
    given = f"{kind} {name!r}: path={path!r} of {type(files).__name__}"
    if not isinstance(path, str) or not path:
        refuse(f"{given} is not the text of a path: no files would be found; pass for instance 'data/sales'")
    if kind == "sink" and posixpath.normpath(path) in {".", "..", "/"}:
        refuse(
            f"{given} is data.dir or a folder around it: a sink replaces its folder, and everything in it "
            "would be removed; pass a folder of its own, for instance 'totals'"
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
        lost = _find_lost_key(node)
        change = f"keep its key {', '.join(lost)}" if lost else f"pass key= one of {', '.join(node.columns)}"
        refuse(
            f"sink {name!r}: {node.name!r} replaces its earlier output, and no key says which record "
            f"replaces which: readers would count both; {change}"
        )


def _find_lost_key(node: Operator) -> tuple[str, ...]:
    """The key by which the rows of a stream replace each other, if the stream has lost a column of it."""
    while node.key is None and node.inputs:
        node, columns = node.inputs[0], node.columns
        if node.key is not None and not {*node.key}.issubset(columns):
            return node.key
    return ()


def require_no_key(name: str, key: object) -> None:
    """Check that no key is given for rows of files."""
    if key is not None:
        refuse(
            f"sink {name!r}: key={key!r}, and rows of files have no key: it would have no effect; leave key= "
            "out, or write to a KafkaTopic; partition_by= of files makes a folder for each value"
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
    # With a schema the topic may be a source, too.
    if isinstance(sink, KafkaTopic) and sink.schema is None:
        plain = KafkaTopic("plain")
        given = [each for each in _OF_SOURCES if getattr(sink, each) != getattr(plain, each)]
        if given:
            refuse(
                f"sink {name!r}: {', '.join(f'{each}=' for each in given)} of topic {sink.name!r} counts "
                "only where a topic is read: it would have no effect; declare it at the source that reads "
                "the topic"
            )


def require_deletable(
    node: Operator, name: str, sink: Sink, deleted: str, key: tuple[str, ...] | None
) -> None:
    """Check that a record can delete an earlier one in a sink."""
    kind = node.types().get(deleted.lower(), "BOOLEAN")
    if kind != "BOOLEAN":
        refuse(
            f"sink {name!r}: deleted={deleted!r} is {kind}, and a BOOLEAN column says which records are "
            f"deleted; compute one, for instance with_columns(gone='{deleted} = 0'), and pass deleted='gone'"
        )
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
    old = find_old_rows(node) if topic.event_time is not None and topic.watermark is None else None
    if old is not None:
        refuse(
            f"cut {name!r}: topic {topic.name!r} has event_time={topic.event_time!r} and no watermark=: the "
            f"watermarks of the sources would cross, and rows of {old.name!r} may be older than these: "
            "windows would drop them as late; give the topic a watermark= that waits long enough, such as "
            "bounded_out_of_orderness(timedelta(hours=1)), or leave event_time out if no windows follow"
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


def require_no_loop(node: Operator, operators: Iterable[Operator]) -> None:
    """Check that a sink does not write a topic that the flow reads or keeps for itself.

    Raises:
        PlanError: A live sink writes the topic of a source upstream of it, or any sink writes the dead
            letters or events of a source of the flow.
    """
    if not isinstance(node, Write):
        return
    topic = node.topic
    for source in operators:
        if not isinstance(source, Read):
            continue
        upstream = source in node.upstream
        if topic is not None and source.topic is not None and source.topic.servers == topic.servers:
            if upstream and not source.bounded and topic.name == source.topic.name:
                refuse(
                    f"sink {node.name!r} writes topic {topic.name!r}, which its source {source.name!r} "
                    "reads: each record would be read and written again without end; write another topic"
                )
            kept = {source.topic.events: "events"}
            if source.topic.on_error == "dead-letter":
                kept[source.topic.dead_letter] = "dead letters"
            if topic.name in kept:
                refuse(
                    f"sink {node.name!r} writes topic {topic.name!r}, where the {kept[topic.name]} of source "
                    f"{source.name!r} are: readers could not tell them from its records; write another topic"
                )


def require_apart(node: Operator, others: Iterable[Operator], base: str = "") -> None:
    """Check that a source or a sink and the others do not share folders.

    Args:
        base: The folder that relative paths start from, if it is known.

    Raises:
        PlanError: A sink writes a folder that a source upstream of it reads, one in it or around it, one
            around the folder of any source, or one that another sink writes.
    """
    for other in others:
        here, there = find_folder(node, base), find_folder(other, base)
        if here is None or there is None:
            continue
        if isinstance(node, Write) and isinstance(other, Write):
            _require_own_folder(node, other, here, there)
        elif isinstance(node, Write):
            _require_source_kept(node, other, here, there)
        elif isinstance(other, Write):
            _require_source_kept(other, node, there, here)


def _require_own_folder(sink: Write, other: Write, here: str, there: str) -> None:
    if not _nested(here, there):
        return
    loss = "each replaces the folder with what is in it, and rows of one would be lost"
    if not (sink.bounded and other.bounded):
        loss = "Spark would take batches of one for those of the other and drop them"
    place = ", and so does" if here == there else f", and {there!r} is that of"
    refuse(
        f"sink {sink.name!r} writes to the folder {here!r}{place} {other.name!r}: {loss}; give it a folder "
        "of its own"
    )


def _nested(one: str, other: str) -> bool:
    return PurePosixPath(one).is_relative_to(other) or PurePosixPath(other).is_relative_to(one)


def _require_source_kept(sink: Write, source: Operator, written: str, read: str) -> None:
    """Check that a sink keeps the files of a source; a stage may read what an earlier one has written."""
    there, here = PurePosixPath(read), PurePosixPath(written)
    around, inside = there.is_relative_to(here), here.is_relative_to(there)
    below = there.relative_to(here).parts if around else ()
    removed = below and not (sink.partition_by and "=" in below[0])  # not a folder of the sink's own rows
    if removed or (source in sink.upstream and (around or inside)):
        place = ", which"
        if written != read:
            place = f", and the folder {read!r} {'in' if around else 'around'} it is what"
        refuse(
            f"sink {sink.name!r} writes the folder {written!r}{place} its source {source.name!r} reads: the "
            "source would be replaced, or read its own results; write another folder"
        )


def find_folder(node: Operator, base: str = "") -> str | None:
    """The folder that a source reads or a sink writes; None if it has no folder."""
    path = getattr(node.connector, "path", None) if isinstance(node, Read | Write) else None
    return None if path is None else posixpath.normpath(posixpath.join(base, path))
