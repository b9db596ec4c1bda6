"""Compile a live query's operators to one streaming DataFrame for its sink.

The frame of a query with Kafka sinks has the columns ``topic``, ``key``, ``value``, ``headers`` and, if
latency markers pass through, ``partition``. Every record whose origin is known has the header ``flowcore-id``
(`flowcore.spark.frame.record_ids`). Every record of a query that joins bounded results has their versions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import count
from pathlib import Path

from pyspark.sql import DataFrame

from flowcore.api.connectors import KafkaTopic
from flowcore.api.event_time import event_time_expression
from flowcore.api.operators import (
    Aggregate,
    Apply,
    Drop,
    Join,
    MapBatches,
    Operator,
    PythonOperator,
    Read,
    Select,
    SideOutput,
    StatefulOperator,
    Union,
    Where,
    WithColumns,
    WithEventTime,
    WithHistory,
    Write,
)
from flowcore.api.updating_rows import find_replacing
from flowcore.errors import PlanError
from flowcore.keyed.content import StoredSchemas
from flowcore.planner.model import Chain, LiveQuery
from flowcore.planner.rules.compatibility import stores_ordinals
from flowcore.planner.rules.failures import find_source_of_made
from flowcore.planner.rules.histories import find_histories
from flowcore.spark.checkpoint.plan_file import checkpoint_folder
from flowcore.spark.compile.stateful_parts import stateful_parts
from flowcore.spark.context import Context
from flowcore.spark.errors import translate_plan_errors
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.open_branches import OpenBranches
from flowcore.spark.frame.record_ids import RecordIds
from flowcore.spark.frame.rows import FIRST_BRANCH, RECORD_ID, RECORD_ORDINAL
from flowcore.spark.operators import batch
from flowcore.spark.operators.event_time import assign_event_time
from flowcore.spark.operators.exchanges import run_exchange
from flowcore.spark.operators.key_group_context import KeyGroupContext
from flowcore.spark.operators.live_aggregates import apply_aggregate
from flowcore.spark.operators.python_chain import Keeping, apply_chain
from flowcore.spark.results.joined import Joined
from flowcore.spark.topics.event_times import milliseconds
from flowcore.spark.topics.histories import read_history
from flowcore.spark.topics.incoming import Incoming
from flowcore.spark.topics.outgoing import Outgoing
from flowcore.spark.topics.side_channels import SideChannels
from flowcore.spark.topics.sources import read_stream
from flowcore.spark.topics.unparsed import find_unparsed

__all__ = ["CompiledQuery", "compile_query"]


@dataclass(frozen=True, slots=True)
class CompiledQuery:
    """A live query that may be started.

    Attributes:
        types: The types of the state that Spark keeps, by operator with state.
        schemas: What operators by key group keep, by name.
    """

    frame: DataFrame
    types: Mapping[str, tuple[str, ...]]
    schemas: Mapping[str, StoredSchemas]


def compile_query(
    query: LiveQuery,
    context: Context,
    joined: Joined,
    side_channels: SideChannels,
    *,
    reads_histories: bool = False,
) -> CompiledQuery:
    """Compile one live query.

    Args:
        joined: The bounded results that it joins; with a column `RECORD_ORDINAL` if keys repeat.
        side_channels: What the query carries besides its records.
        reads_histories: It reads histories, and nothing from its topics.

    Raises:
        PlanError: Spark refuses an operator; the message names it.
    """
    compiler = _Compiler(query, context, joined, side_channels, reads_histories=reads_histories)
    return CompiledQuery(compiler.sink_frame(), compiler.types, compiler.key_groups.schemas)


class _Compiler:
    def __init__(
        self,
        query: LiveQuery,
        context: Context,
        joined: Joined,
        side_channels: SideChannels,
        *,
        reads_histories: bool,
    ) -> None:
        self.query = query
        self.reads_histories = reads_histories
        self.histories = {node.live: node for node in find_histories(query.operators)}
        self.context = context
        self.joined = joined
        self.side_channels = side_channels
        self.names: Iterator[str] = (f"_c{number}" for number in count(1))
        self.numbers = count(FIRST_BRANCH)
        self.record_ids = RecordIds.of(
            context.flow, query.operators, side_channels.topics, has_ordinals=_has_ordinals(query, joined)
        )
        self.used = query.used_columns
        self.columns = {
            node: [column for column in node.columns if column.lower() in self.used[node]]
            for node in query.operators
        }
        self.chains: dict[Operator, Chain] = {chain.head: chain for chain in query.chains}
        self.key_groups = KeyGroupContext(
            query=query,
            settings=context.settings,
            checkpoint=str(checkpoint_folder(query, context.flow, context.settings)),
            side_channels=side_channels,
            record_ids=self.record_ids,
            numbers=self.numbers,
            times=context.busy_times.for_tasks(context.spark.sparkContext, query.name),
        )
        self.open = OpenBranches(self.numbers, self.columns)
        self.types: dict[str, tuple[str, ...]] = {}

    def sink_frame(self) -> DataFrame:
        query, unbuffered = self.query, {*self.query.function_buffers}
        readers = _count_branches(query)
        # The function of a buffer runs before the exchange of the buffer, which is its only reader.
        depths = {node: depth - (node in unbuffered) for node, depth in query.depths.items()}
        for depth, exchange in enumerate(((), *query.exchanges)):
            if exchange:
                reads = {node: (node,) if node in unbuffered else node.inputs for node in exchange}
                unbuffered.difference_update(exchange)
                # Operators that read the same output share a branch.
                branched, taken = self.open.merge(parent for parents in reads.values() for parent in parents)
                nodes = {node: [taken[parent] for parent in parents] for node, parents in reads.items()}
                outputs = run_exchange(
                    nodes, branched, self.open.columns_in(branched), self.key_groups,
                    timed=self._keeps_timestamps(nodes, branched),
                )  # fmt: skip
                for output, branch in outputs.items():
                    self.open.add(output, branched, branch, readers[output])
            for node in query.operators:
                if depths[node] == depth and not isinstance(node, StatefulOperator):
                    with translate_plan_errors(node.name, self.open.logical_names(node.inputs)):
                        for output, branched, branch in self._compile(node):
                            count = 1 if output in unbuffered else readers[output]
                            self.open.add(output, branched, branch, count)
        return self._write()

    def _compile(self, node: Operator) -> Iterator[tuple[Operator, BranchedFrame, Branch]]:
        """Compile an operator, and yield its output and those of operators that are compiled with it."""
        match node:
            case Read():
                yield (node, *self._read(node))
            case Union():
                place = self.record_ids.of_place("topic", "partition", "offset")
                yield (node, *self.open.unite(node, self.record_ids.steps[node], place))
            case _ if node in self.chains:
                chain = self.chains[node]
                branched, branch = self.open.take(node.inputs[0])
                branches = apply_chain(
                    chain, branched, branch, used=self.used, numbers=self.numbers,
                    steps=self.record_ids.steps,
                    kept=[name for names in self.open.columns_in(branched).values() for name in names],
                    check=self.context.settings.object_reuse_check, last=self._is_last(chain),
                    keeping=Keeping(self.key_groups.checkpoint, self.key_groups.times),
                    lags=self.side_channels.lags,
                    timed=self._keeps_timestamps(chain.outputs, branched), made=self._topic_of_made(chain),
                )  # fmt: skip
                for output, each in branches.items():
                    yield output, branched, each
            case WithHistory():
                yield (node, *self._cut_at_seam(node, *self.open.take(node.live)))
            case PythonOperator() | SideOutput() | Write():
                pass  # compiled with another operator, or with all sinks
            case _:
                yield (node, *self._apply_native(node, *self.open.take(node.inputs[0])))

    def _cut_at_seam(
        self, node: WithHistory, branched: BranchedFrame, branch: Branch
    ) -> tuple[BranchedFrame, Branch]:
        """Drop the records of a topic from before the seam; those of its history have negative offsets.

        Records without a time are dropped, too: the history keeps its own.
        """
        expression = event_time_expression(node.live)
        if node.at_ms is not None and expression is not None:
            time = milliseconds(branched.frame, branch.expression(expression))
            branched.filter(branch, f"offset < 0 OR {time} >= {node.at_ms}")
        return branched, branch

    def _apply_native(
        self, node: Operator, branched: BranchedFrame, branch: Branch
    ) -> tuple[BranchedFrame, Branch]:
        columns = self.columns[node]
        match node:
            case Select() | WithColumns():
                return branched, branched.project(
                    branch, node.expressions, columns, self.record_ids.steps[node]
                )
            case Drop():
                names = {name: branch.physical_names[name.lower()] for name in columns}
                return branched, replace(branch, columns=names)
            case Where():
                branched.filter(branch, branch.expression(node.condition))
                return branched, branch
            case WithEventTime():
                assign_event_time(
                    node, branched, branch, query=self.query, side_channels=self.side_channels,
                    number=self.key_groups.sources.index(node),
                )  # fmt: skip
                return branched, branch
            case Join():
                result = self.joined.frames[node.inputs[1]]
                _require_single_partner(node, result)
                own = {column.lower() for column in node.inputs[0].columns}
                if node.how == "left" and RECORD_ORDINAL not in result.columns and self.used[node] <= own:
                    return branched, branch  # at most one partner for each record, and no column is read
                right = branched.join(
                    branch, result, node.on, node.how, self.record_ids.steps[node],
                    shuffles=node in self.query.shuffled_joins,
                )  # fmt: skip
                known = {**{name.lower(): c for name, c in right.items()}, **branch.physical_names}
                return branched, replace(branch, columns={name: known[name.lower()] for name in columns})
            case Apply():
                frame = batch.apply_function(node, branched.rows_of(branch))
                if kept := stateful_parts(frame):
                    self.types[node.name] = kept
                branched = BranchedFrame(frame, self.names, has_coordinates=False)
                return branched, Branch(next(self.numbers), {column: column for column in frame.columns})
            case Aggregate():
                branched, branch = apply_aggregate(
                    node, branched, branch, self.record_ids.states[node],
                    timed=node in self.query.timestamped,
                    buffered=self.query.batch_interval_ms is not None,
                )  # fmt: skip
                fields = branched.frame.drop(RECORD_ID, RECORD_ORDINAL).schema.fields
                # The last one is the number of records of a group.
                self.types[node.name] = (*(field.dataType.simpleString() for field in fields), "bigint")
                return branched, branch
            case _:
                msg = f"operator {node.name!r} has no output of its own"
                raise PlanError(msg)

    def _keeps_timestamps(self, outputs: Iterable[Operator], branched: BranchedFrame) -> bool:
        """Whether records of these outputs, or of the other branches of their frame, have timestamps."""
        return not self.query.timestamped.isdisjoint([*outputs, *self.open.outputs_in(branched)])

    def _topic_of_made(self, chain: Chain) -> str | None:
        source = find_source_of_made(chain, self.query)
        return None if source is None else _topic(source).name

    def _is_last(self, chain: Chain) -> bool:
        """Whether no record may fail downstream of a chain, or of others, in a call or without event time."""
        return len(self.chains) == 1 and not any(chain.head in each.upstream for each in self.query.assigners)

    def _read(self, node: Read) -> tuple[BranchedFrame, Branch]:
        topic = _topic(node)
        incoming = Incoming(
            node=node,
            topic=self.context.readable(topic),
            side_channels=self.side_channels,
            keeps_bad=node in self.query.dead_letters,
            counts_bad=node in self.query.counts_bad and self.query.mode.value != "realtime",
            has_ordinals=self.record_ids.has_ordinals,
            number=self.query.sources.index(node),
            may_fail=bool(self.chains or self.query.assigners),
            place=self.record_ids.of_place("topic", "partition", "offset") if node.written_by else None,
            own_channels=f"{self.context.flow}/" if node.written_by else None,
            checkpoint=self.key_groups.checkpoint,
        )
        columns = {name: next(self.names) for name in node.columns}
        branch = Branch(next(self.numbers), columns, has_record_id=node.written_by is not None)
        messages = read_stream(
            topic, self.query, self.context, events=self.side_channels.has_markers, held=self.reads_histories
        )
        if node in self.histories:
            checkpoint = Path(self.key_groups.checkpoint)
            past = read_history(self.histories[node], checkpoint, self.context, messages.columns)
            messages = messages.unionByName(past, allowMissingColumns=True)
        branched = incoming.read(messages, branch, self.names)
        branched.unparsed = find_unparsed(incoming, messages, branch, branched)
        return branched, branch

    def _write(self) -> DataFrame:
        """The rows for the sinks."""
        query = self.query
        ends = [(*self.open.take(sink.inputs[0]), sink) for sink in query.sinks]
        if len(ends) == 1 and ends[0][2].topic is None:
            branched, branch, _ = ends[0]
            return branched.rows_of(branch)
        frames = [branched for branched, _, _ in ends]
        for branched, branch in self.open.rest:  # a source that is read only for its bad records
            branched.filter(branch, "false")
            frames.append(branched)
        dead_letters = [*dict.fromkeys((*query.dead_letters, *query.key_group_dead_letters))]
        nodes: tuple[Read | Write, ...] = (*query.sinks, *query.sources, *dead_letters)
        topics = {node: _topic(node) for node in nodes}
        topics |= {sink: self.context.writable(topics[sink]) for sink in query.sinks}
        outgoing = Outgoing(
            sinks=[(sink, topics[sink]) for sink in query.sinks],
            dead_letters=[(node, topics[node]) for node in dead_letters],
            side_channels=self.side_channels,
            sources=[topics[node] for node in query.sources],
            record_ids=self.record_ids,
            joined_version=self.joined.version,
            assigners=[each.name for each in query.assigners],
        )
        outputs = []
        for branched in dict.fromkeys(frames):
            own = [(each, sink, topics[sink]) for owner, each, sink in ends if owner is branched]
            outputs.append(outgoing.messages(branched, own))
        return reduce(lambda united, frame: united.unionByName(frame, allowMissingColumns=True), outputs)


def _require_single_partner(node: Join, result: DataFrame) -> None:
    """Refuse a table whose keys repeat if rows replace earlier ones by key: partners of one have its key."""
    rows, table = node.inputs
    replacing = find_replacing(rows)
    repeats = RECORD_ORDINAL in result.columns and node.how in ("inner", "left")
    if not repeats or replacing is None or node.key is None:
        return
    key, on = ", ".join(node.key), ", ".join(right for _, right in node.on)
    msg = (
        f"operator {node.name!r}: several rows of {table.name!r} have the same {on}, and rows of "
        f"{replacing.name!r} replace earlier ones by {key}: the partners of one row would replace each "
        f"other; give {table.name!r} one row for each {on}, for instance by an aggregate, or join the "
        f"table before {replacing.name!r}"
    )
    raise PlanError(msg)


def _has_ordinals(query: LiveQuery, joined: Joined) -> bool:
    """Whether one record may become several."""
    if query.keeps_key_groups:
        return stores_ordinals(query)
    if any(node.repeats_records or isinstance(node, MapBatches) for node in query.operators):
        return True
    return any(RECORD_ORDINAL in frame.columns for frame in joined.frames.values())


def _count_branches(query: LiveQuery) -> dict[Operator, int]:
    """How many branches the output of each operator needs; operators of an exchange share one."""
    depths = query.depths
    edges = [(parent, node) for node in query.operators for parent in node.inputs]
    keyed = {(parent, depths[node]) for parent, node in edges if isinstance(node, StatefulOperator)}
    readers = Counter(parent for parent, _ in keyed)
    readers.update(parent for parent, node in edges if not isinstance(node, (SideOutput, StatefulOperator)))
    return {node: readers[node] for node in query.operators}


def _topic(node: Read | Write) -> KafkaTopic:
    topic = node.topic
    if topic is None:
        msg = f"operator {node.name!r} is not a Kafka topic: a live query can read and share only topics"
        raise PlanError(msg)
    return topic
