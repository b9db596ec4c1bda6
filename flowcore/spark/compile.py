"""Compile: from a live query's operators to one streaming DataFrame, ready for its sink.

The frame of a query with Kafka sinks has the columns ``topic``, ``key``, ``value``, ``headers``. Every
record that comes from one source record carries the header ``flowcore-id``:
``topic:partition:offset:ordinal``, the same after a restart, so that readers can drop repeats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count

from pyspark.sql import DataFrame

from flowcore.errors import PlanError
from flowcore.graph.connectors import KafkaTopic
from flowcore.graph.operators import (
    Aggregate,
    Apply,
    Join,
    Operator,
    Read,
    Select,
    Union,
    Where,
    WithColumns,
    Write,
    topic_of,
)
from flowcore.planner.columns import columns_used
from flowcore.planner.plan import LiveQuery
from flowcore.spark import batch
from flowcore.spark.boundary import declared_by
from flowcore.spark.context import Context
from flowcore.spark.lanes import BAD, LANE, ORDINAL, Lane, Tracks, unite
from flowcore.spark.sinks import bad_record_headers, headers, kafka_key, kafka_value
from flowcore.spark.sql import literal, quoted
from flowcore.spark.stream_source import read_stream
from flowcore.spark.values import RECORD, bad_record, fail_at, parsed

__all__ = ["compile_query"]

_COORDINATES = ("topic", "partition", "offset")


def compile_query(query: LiveQuery, context: Context, results: Mapping[Operator, DataFrame]) -> DataFrame:
    """Compile one live query.

    Args:
        query: What to compile.
        context: Session and settings.
        results: The bounded results it joins; with a column `ORDINAL` where keys repeat.

    Raises:
        PlanError: Spark refuses an operator; the message names it.
    """
    return _Compiler(query, context, results).sink_frame()


class _Compiler:
    def __init__(self, query: LiveQuery, context: Context, results: Mapping[Operator, DataFrame]) -> None:
        self.query = query
        self.context = context
        self.results = results
        self.names: Iterator[str] = (f"_c{number}" for number in count(1))
        self.numbers = count(BAD + 1)
        self.topics = Counter(topic.name for sink in query.sinks if (topic := topic_of(sink)))
        self.counted = any(ORDINAL in frame.columns for frame in results.values()) or any(
            isinstance(node, Union) for node in query.operators
        )
        readers = Counter(parent for node in query.operators for parent in node.inputs)
        self.readers = {node: readers[node] for node in query.operators}
        self.used = columns_used(query.operators)
        self.waiting: dict[Operator, list[tuple[Tracks, Lane]]] = {}
        self.ends: list[tuple[Tracks, Lane, Write]] = []

    def sink_frame(self) -> DataFrame:
        for node in self.query.operators:
            with declared_by(node.name):
                if isinstance(node, Write):
                    self.ends.append((*self._take(node.inputs[0]), node))
                else:
                    self._put(node, *self._output(node))
        frames = [tracks for tracks, _, _ in self.ends]
        for waiting in self.waiting.values():
            for tracks, lane in waiting:  # a source that is read for its bad records alone
                tracks.keep(lane, "false")
                frames.append(tracks)
        if len(self.ends) == 1 and topic_of(self.ends[0][2]) is None:
            tracks, lane, _ = self.ends[0]
            return tracks.only(lane)
        outputs = [self._records(tracks) for tracks in dict.fromkeys(frames)]
        first, *rest = outputs
        for frame in rest:
            first = first.unionByName(frame)
        return first

    def _take(self, node: Operator) -> tuple[Tracks, Lane]:
        return self.waiting[node].pop()

    def _put(self, node: Operator, tracks: Tracks, lane: Lane) -> None:
        readers = self.readers[node]
        lanes = [lane] if readers <= 1 else tracks.split(lane, [next(self.numbers) for _ in range(readers)])
        self.waiting[node] = [(tracks, each) for each in lanes]

    def _output(self, node: Operator) -> tuple[Tracks, Lane]:
        match node:
            case Read():
                return self._read(node)
            case Union():
                return self._unite(node)
            case Select() | WithColumns():
                tracks, lane = self._take(node.inputs[0])
                return tracks, self._project(node, tracks, lane)
            case Where():
                tracks, lane = self._take(node.inputs[0])
                tracks.keep(lane, lane.expression(node.condition))
                return tracks, lane
            case Join():
                tracks, lane = self._take(node.inputs[0])
                result = self.results[node.inputs[1]]
                if self._changes_nothing(node, result):
                    return tracks, lane
                right = tracks.join(lane, result, node.on, node.how)
                known = {**{name.lower(): c for name, c in right.items()}, **lane.lower}
                return tracks, Lane(lane.number, {name: known[name.lower()] for name in self._used(node)})
            case Aggregate() | Apply():
                tracks, lane = self._take(node.inputs[0])
                frame = tracks.only(lane)
                if isinstance(node, Apply):
                    return self._plain(batch.applied(node, frame))
                return self._plain(batch.grouped(frame, node.by, node.aggregates))
            case Write():
                msg = f"operator {node.name!r} has no output"
                raise PlanError(msg)

    def _unite(self, node: Union) -> tuple[Tracks, Lane]:
        members = [self._take(parent) for parent in node.inputs]
        tracks, lane = unite(members, self._used(node), next(self.numbers))
        # Other branches of the same sources are in the united frame now.
        gone = {owner for owner, _ in members}
        for parent, waiting in self.waiting.items():
            self.waiting[parent] = [(tracks if owner in gone else owner, each) for owner, each in waiting]
        self.ends = [(tracks if owner in gone else owner, each, sink) for owner, each, sink in self.ends]
        return tracks, lane

    def _used(self, node: Operator) -> list[str]:
        return [column for column in node.columns if column.lower() in self.used[node]]

    def _project(self, node: Select | WithColumns, tracks: Tracks, lane: Lane) -> Lane:
        """Plain columns keep their physical name; only what is computed gets a new one."""
        known = lane.lower
        plain, computed = {}, {}
        for name, expression in node.expressions:
            bare = expression.text.strip("`").lower()
            if bare in known and len(expression.references) == 1:
                plain[name.lower()] = known[bare]
            elif name.lower() in self.used[node] or expression.generates:
                computed[name] = lane.expression(expression)
        after = tracks.compute(lane, computed, list(computed)).lower if computed else {}
        names = {**known, **plain, **after}
        return Lane(lane.number, {name: names[name.lower()] for name in self._used(node)})

    def _changes_nothing(self, node: Join, result: DataFrame) -> bool:
        """A left join that gives each record at most one partner, of which nobody reads a column."""
        left = {column.lower() for column in node.inputs[0].columns}
        return node.how == "left" and ORDINAL not in result.columns and self.used[node] <= left

    def _plain(self, frame: DataFrame) -> tuple[Tracks, Lane]:
        """A frame whose rows come from no single record."""
        tracks = Tracks(frame, self.names, shared=False, identified=False)
        return tracks, Lane(next(self.numbers), {column: column for column in frame.columns})

    def _read(self, node: Read) -> tuple[Tracks, Lane]:
        topic = _topic(node)
        records = read_stream(topic, self.query, self.context)
        origin = f"{literal(topic.name)} AS topic"  # one constant instead of a string in every row
        records = records.selectExpr(origin, "partition", "offset", "value", parsed(node))
        shared = node in self.query.dead_letters
        bad = bad_record(node)
        lane = Lane(next(self.numbers), {name: next(self.names) for name in node.columns})
        extra = [f"'0' AS {ORDINAL}"] if self.counted else []
        if shared:
            # Only a bad record leaves with its bytes: nothing else carries them along.
            extra += [f"CASE WHEN {bad} THEN value END AS value"]
            extra += [f"CASE WHEN {bad} THEN {BAD} ELSE {lane.number} END AS {LANE}"]
        elif topic.on_error == "fail":
            records = records.where(f"CASE WHEN {bad} THEN {fail_at(topic.name)} ELSE true END")
        else:
            records = records.where(f"NOT {bad}")
        fields = (f"{RECORD}.{quoted(name)} AS {physical}" for name, physical in lane.columns.items())
        records = records.selectExpr(*_COORDINATES, *extra, *fields)
        return Tracks(records, self.names, shared=shared, identified=True), lane

    def _records(self, tracks: Tracks) -> DataFrame:
        """Topic, key, value and headers of every row of a frame."""
        ends = [(lane, sink) for owner, lane, sink in self.ends if owner is tracks]
        cases: list[tuple[str, dict[str, str]]] = []
        if tracks.shared:
            sources = self.query.dead_letters
            for node in sources:
                mine = f"{LANE} = {BAD}"
                if len(sources) > 1:
                    mine += f" AND topic = {literal(_topic(node).name)}"
                cases.append((mine, _dead_letter(node)))
        cases += [(tracks.mine(lane), self._outgoing(tracks, lane, sink)) for lane, sink in ends]
        columns = ("topic", "key", "value", "headers")
        return tracks.frame.selectExpr(*(f"{_case(cases, column)} AS {column}" for column in columns))

    def _outgoing(self, tracks: Tracks, lane: Lane, sink: Write) -> dict[str, str]:
        columns = {name: lane.column(name) for name in sink.columns}
        ordinal = ORDINAL if self.counted else "'0'"
        if self.topics[_topic(sink).name] > 1:  # several branches of a record meet in the topic
            ordinal += f" || {literal(f'.{sink.name}')}"
        identity = f"(topic || ':' || partition || ':' || offset || ':' || {ordinal})"
        return {
            "topic": literal(_topic(sink).name),
            "key": kafka_key(sink.key, columns),
            "value": kafka_value(_topic(sink), columns),
            "headers": headers({"flowcore-id": identity}) if tracks.identified else headers({}),
        }


def _dead_letter(node: Read) -> dict[str, str]:
    return {
        "topic": literal(_topic(node).dead_letter),
        "key": "CAST(NULL AS STRING)",
        "value": "value",
        "headers": bad_record_headers(node),
    }


def _topic(node: Read | Write) -> KafkaTopic:
    topic = topic_of(node)
    if topic is None:
        msg = f"operator {node.name!r} is no Kafka topic, and only those can be read or shared live"
        raise PlanError(msg)
    return topic


def _case(cases: list[tuple[str, dict[str, str]]], column: str) -> str:
    """The value of the first case that holds; the last needs no test, since every row is in a lane."""
    *first, (_, last) = cases
    tests = " ".join(f"WHEN {condition} THEN {values[column]}" for condition, values in first)
    return f"CASE {tests} ELSE {last[column]} END" if first else last[column]
