"""The flow: its graph, sources and streams.

Declaring a flow starts no JVM and reads no data. Mistakes in names and types are errors where they are
declared, with the names of operator and column.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn, Self, get_args

from flowcore.api import checks, connector_checks, type_checks, window_checks
from flowcore.api.attributes import Attributes, collect_declared
from flowcore.api.connectors import RECORD_ID_HEADER, Files, KafkaTopic, Sink, Source
from flowcore.api.event_time import require_event_time
from flowcore.api.expressions import name_columns, resolve
from flowcore.api.graph import Graph
from flowcore.api.joining_stream import JoiningStream
from flowcore.api.operators import Deduplicate, Read, Write
from flowcore.api.python_stream import PythonStream
from flowcore.api.relational_stream import RelationalStream
from flowcore.api.resolution import resolve_replaced_key
from flowcore.api.schema import Schema
from flowcore.api.stateful import IS_DELETED
from flowcore.api.updating_rows import find_deleted
from flowcore.api.value_formats import check_written, value_schema

__all__ = ["Flow", "Stream"]


_GROUPED = "aggregate(by='id', n='count(*)'), or window(..., by='id') before it"
_CALLED_ELSEWHERE = {
    "group_by": _GROUPED,
    "groupBy": _GROUPED,
    "key_by": "by= of window(...), process(...), reduce(...) and aggregate(...)",
    "keyBy": "by= of window(...), process(...), reduce(...) and aggregate(...)",
    "withColumn": "with_columns(twice='price * 2')",
    "with_column": "with_columns(twice='price * 2')",
    "flatmap": "flat_map(function, schema='id BIGINT')",
    "flatMap": "flat_map(function, schema='id BIGINT')",
    "distinct": "deduplicate(by='id', within=timedelta(hours=1))",
    "sink_to": "write('out', KafkaTopic('out'))",
    "order_by": "sort_by_event_time(), or top_n(3, order='price desc')",
    "orderBy": "sort_by_event_time(), or top_n(3, order='price desc')",
}
"""Methods of Flink, Spark and others, with what is meant."""


class Stream(RelationalStream, PythonStream, JoiningStream):
    """The output of one operator; its methods add operators downstream of it.

    Expressions are Spark SQL text over this stream's columns. Every method takes a ``name``, which
    errors, plans, results and checkpoints use; without one it gets a name such as ``select_1``. It also takes
    ``attributes``, which override the operator's own ones; see `OperatorAttributes`.
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name not in _CALLED_ELSEWHERE:
                msg = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(msg)
            msg = (
                f"a stream has no {name}: what other libraries call so is here {_CALLED_ELSEWHERE[name]} "
                f"(of {self.operator.name!r})"
            )
            raise checks.MissingMethodError(msg)

    def write(
        self,
        name: str,
        sink: Sink,
        *,
        key: str | Sequence[str] | None = None,
        deleted: str | None = None,
        attributes: Attributes | None = None,
    ) -> None:
        """Write this stream to a sink.

        Args:
            sink: A `KafkaTopic`, or `Parquet`, `Csv`, `Json` files.
            key: Columns of the Kafka key; default: the sink's, else the stream's own key.
            deleted: A BOOLEAN column, which is not written. Where it is true, the record is a tombstone: its
                value is null, which deletes its key. Default: the column ``is_deleted`` of an `aggregate`
                whose groups may lose all their rows, if the stream still has it.

        Raises:
            PlanError: Later records replace or delete earlier ones, and the sink has no key to say which.
        """
        self._write(name, sink, key=key, deleted=deleted, attributes=attributes)

    def through(
        self, topic: KafkaTopic | str, *, schema: Schema | str | None = None, name: str | None = None
    ) -> Self:
        """Cut the flow: one live query writes this stream to a topic, and the next one reads it there.

        Operators that cannot run in one query can then follow each other. Timestamps, watermarks and other
        control elements cross in the topic, which has tagged elements, so event time continues. A record that
        is written again after a restart is in the topic twice, with one record id: ``deduplicate=True`` of
        the topic drops the second one.

        Args:
            topic: The topic of the cut, or its name; nothing else in the flow may read or write it.
                ``event_time`` and ``watermark`` replace what crosses, for a stream without timestamps.
            schema: The types of all columns, as Spark DDL. Default: the schema of the topic, else the
                one that the last operator declares.
            name: The name of the source that reads the topic; the sink is called ``to_<name>``. Default: the
                name of the topic.

        Raises:
            PlanError: The stream is bounded, its columns are not those of the schema, the topic has another
                use in the flow, or would not hold what crosses.
        """
        node = self.operator
        topic = KafkaTopic(topic) if isinstance(topic, str) else topic
        if not isinstance(topic, KafkaTopic):
            checks.refuse(
                f"{topic!r} is not a topic: it would not be known where {node.name!r} is cut; pass "
                f"for instance through({node.name!r})"
            )
        name = name or topic.name
        declared = schema or value_schema(topic) or getattr(node, "schema", None)
        known = None if declared is None else Schema.parse(declared)
        checked = connector_checks.require_cut(node, name, topic, known)
        type_checks.require_crossing(node, name, topic, checked)
        topic = replace(topic, schema=checked, elements="tagged")
        sink = replace(topic, event_time=None, watermark=None, channels=None)
        written = self._write(f"to_{name}", sink, is_cut=True)
        read = Read(
            name=name, inputs=(), columns=_source_columns(name, topic, checked), source=topic,
            schema=checked, bounded=False, key=node.key, updating=node.updating, written_by=written,
        )  # fmt: skip
        require_event_time(read)
        stream = self.append(read)
        return stream.append(_drop_repeats(read, topic)) if topic.deduplicate else stream

    def _write(
        self,
        name: str,
        sink: Sink,
        *,
        key: str | Sequence[str] | None = None,
        deleted: str | None = None,
        attributes: Attributes | None = None,
        is_cut: bool = False,
    ) -> Write:
        node = self.operator
        connector_checks.require_connector("sink", name, sink, get_args(Sink))
        given = key if key is not None else sink.key if isinstance(sink, KafkaTopic) else None
        named = node.key if given is None else name_columns(given, name, "key")
        keys = None if named is None else resolve(named, node.columns, name, f"key={given!r}")
        connector_checks.require_writable(node, name, sink, keys)
        connector_checks.require_for_sink(name, sink)
        # By a part of the key, a deletion would delete what other rows of that part are the last of.
        if deleted is None and keys and not is_cut and {*keys} == {*(node.key or ())}:
            deleted = find_deleted(node)
        if deleted is not None:
            (deleted,) = resolve((deleted,), node.columns, name, f"deleted={deleted!r}")
            connector_checks.require_deletable(node, name, sink, deleted, keys)
        if isinstance(sink, KafkaTopic):
            check_written(sink, [each for each in node.columns if each != deleted], name, keys)
            type_checks.require_written_types(node, name, sink)
        else:
            connector_checks.require_no_key(name, key)
            sink = _with_folders(sink, node.columns, name)
            type_checks.require_file_types(node, name, sink)
        fields = self._fields(name, attributes, key=keys)
        written = Write(**fields, sink=sink, deleted=deleted, is_cut=is_cut)
        self.graph.register(written)
        return written


class Flow(Graph):
    """A named graph of operators.

    Args:
        name: Letters, digits, ``_``, ``-``, ``.``; names folders, checkpoints and Dagster assets.

    >>> from flowcore import Flow, Parquet
    >>> flow = Flow("report")
    >>> sales = flow.read("sales", Parquet("sales", schema="shop STRING, price DOUBLE"))
    >>> totals = sales.aggregate(by="shop", total="sum(price)")
    >>> totals.columns
    ('shop', 'total')
    """

    def read(self, name: str, source: Source, *, attributes: Attributes | None = None) -> Stream:
        """Read a source; bounded, unless it is a `KafkaTopic` without ``until``.

        Raises:
            PlanError: The name is taken, the source has no schema, its event time or its markers cannot
                be computed from it, the form of its elements is not declared, or ``updating_by`` names a
                column that a Kafka key cannot hold.
        """
        connector_checks.require_connector("source", name, source, get_args(Source))
        if source.schema is None:
            where = getattr(source, "name", None) or getattr(source, "path", "")
            checks.refuse(
                f"operator {name!r}: {type(source).__name__}({where!r}) has no schema: a flow is checked "
                "before any data is seen; pass schema='id BIGINT, price DOUBLE'"
            )
        schema = Schema.parse(source.schema)
        connector_checks.require_readable(name, source)
        if isinstance(source, Files):
            type_checks.require_read_types(name, source, schema)
        bounded = not isinstance(source, KafkaTopic) or source.until is not None
        key = resolve_replaced_key(name, source, schema)
        updating = key is not None and not bounded
        node = Read(
            name=name, inputs=(), columns=_source_columns(name, source, schema),
            source=source, schema=schema, bounded=bounded, key=key if updating else None, updating=updating,
            row_key=key, declared_attributes=collect_declared(attributes),
        )  # fmt: skip
        require_event_time(node)
        self.register(node)
        stream = Stream(self, node)
        if isinstance(source, KafkaTopic) and source.deduplicate:
            return stream.append(_drop_repeats(node, source))
        return stream


def _with_folders(sink: Files, columns: Sequence[str], name: str) -> Files:
    """The sink with the columns that name its folders as the stream names them."""
    given = sink.partition_by
    folders = resolve(name_columns(given, name, "partition_by"), columns, name, f"partition_by={given!r}")
    checks.require_distinct(name, folders)
    if len(folders) == len(columns):
        checks.refuse(
            f"sink {name!r}: partition_by names each of {', '.join(columns)}: no column would be left for "
            "the files; name fewer"
        )
    return replace(sink, partition_by=folders)


def _source_columns(name: str, source: Source, schema: Schema) -> tuple[str, ...]:
    """The columns of a source, from the values and, if they are read, other parts of messages.

    These are the record id, the columns of the key, and whether a message deletes its key.
    """
    columns = [*schema.names]
    if isinstance(source, KafkaTopic) and source.deduplicate:
        columns.append(RECORD_ID_HEADER)
    if isinstance(source, KafkaTopic) and source.updating_by is not None and source.until is None:
        columns.append(IS_DELETED)
    checks.require_distinct(name, columns)
    return tuple(columns)


def _drop_repeats(node: Read, topic: KafkaTopic) -> Deduplicate:
    """Deduplication of a source's records by their ids; a bounded source is read as a whole."""
    name, within = f"{node.name}.deduplicated", None if node.bounded else topic.deduplicate_within
    within_ms = window_checks.deduplication_ms(name, within)
    return Deduplicate(
        name=name, inputs=(node,), columns=node.schema.names, bounded=node.bounded,
        key=node.key, updating=node.updating, by=(RECORD_ID_HEADER,), within_ms=within_ms,
        pass_null_keys=True, time=window_checks.deduplication_time(node, name, within_ms),
    )  # fmt: skip
