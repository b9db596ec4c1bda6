"""Compile a live query's operators to one streaming DataFrame for its sink.

The frame of a query with Kafka sinks has the columns ``topic``, ``key``, ``value``, ``headers`` and, if
latency markers pass through, ``partition``. Every record whose origin is known has the header ``flowcore-id``
(`flowcore.spark.frame.record_ids`). Every record of a query that joins bounded results has their versions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import count

from pyspark.sql import DataFrame

from flowcore.api.connectors import KafkaTopic
from flowcore.api.operators import (
    Aggregate,
    Apply,
    Drop,
    Join,
    KeyedProcess,
    MapBatches,
    Operator,
    PythonOperator,
    Read,
    Select,
    SideOutput,
    StatefulOperator,
    Union,
    Where,
    Window,
    WithColumns,
    Write,
)
from flowcore.api.stateful import find_side_outputs
from flowcore.errors import PlanError
from flowcore.planner.model import Chain, LiveQuery, find_depths
from flowcore.planner.rules.columns import find_used_columns
from flowcore.planner.rules.failures import select_dead_letter_sources
from flowcore.spark.checkpoint.plan_file import checkpoint_folder
from flowcore.spark.checkpoint.state_types import column_types, stateful_parts
from flowcore.spark.context import Context
from flowcore.spark.errors import translate_plan_errors
from flowcore.spark.frame.branches import Branch, BranchedFrame, merge_frames, unite
from flowcore.spark.frame.record_ids import RecordIds
from flowcore.spark.frame.rows import FIRST_BRANCH, RECORD_ID, RECORD_ORDINAL
from flowcore.spark.operators import batch
from flowcore.spark.operators.buffers import apply_buffer, find_buffer
from flowcore.spark.operators.exchanges import run_exchange
from flowcore.spark.operators.keyed_step import KeyGroupContext, StepMember
from flowcore.spark.operators.live_aggregates import apply_aggregate
from flowcore.spark.operators.processes import prepare_keyed_process
from flowcore.spark.operators.python_chain import apply_chain
from flowcore.spark.operators.windows import prepare_window
from flowcore.spark.results.joined import Joined
from flowcore.spark.topics.incoming import Incoming
from flowcore.spark.topics.outgoing import Outgoing
from flowcore.spark.topics.side_channels import SideChannels
from flowcore.spark.topics.sources import read_stream

__all__ = ["CompiledQuery", "compile_query"]


@dataclass(frozen=True, slots=True)
class CompiledQuery:
    """A live query that may be started.

    Attributes:
        frame: The rows for its sink.
        types: The types of the state that Spark keeps, by operator with state.
    """

    frame: DataFrame
    types: Mapping[str, tuple[str, ...]]


def compile_query(
    query: LiveQuery, context: Context, joined: Joined, side_channels: SideChannels
) -> CompiledQuery:
    """Compile one live query.

    Args:
        query: The query.
        context: Session and settings.
        joined: The bounded results that it joins; with a column `RECORD_ORDINAL` if keys repeat.
        side_channels: What the query carries besides its records.

    Raises:
        PlanError: Spark refuses an operator; the message names it.
    """
    compiler = _Compiler(query, context, joined, side_channels)
    return CompiledQuery(compiler.sink_frame(), compiler.types)


class _Compiler:
    def __init__(
        self, query: LiveQuery, context: Context, joined: Joined, side_channels: SideChannels
    ) -> None:
        self.query = query
        self.context = context
        self.joined = joined
        self.side_channels = side_channels
        self.names: Iterator[str] = (f"_c{number}" for number in count(1))
        self.numbers = count(FIRST_BRANCH)
        self.record_ids = RecordIds.of(
            context.flow, query.operators, side_channels.topics, has_ordinals=_has_ordinals(query, joined)
        )
        self.readers = _count_branches(query)
        self.used = find_used_columns(query.operators)
        # A buffer's state must not depend on which columns are read downstream.
        whole = {node: frozenset(map(str.lower, node.columns)) for node in query.buffers}
        self.used = {**self.used, **whole}
        self.columns = {
            node: [column for column in node.columns if column.lower() in self.used[node]]
            for node in query.operators
        }
        self.chains: dict[Operator, Chain] = {chain.head: chain for chain in query.chains}
        self.key_groups = KeyGroupContext(
            query=query,
            checkpoint=str(checkpoint_folder(query, context.flow, context.settings)),
            side_channels=side_channels,
            dead_letter_sources=select_dead_letter_sources(query),
            record_ids=self.record_ids,
            numbers=self.numbers,
            max_cache_bytes=context.settings.max_cache_bytes,
        )
        self.waiting: dict[Operator, list[tuple[BranchedFrame, Branch]]] = {}
        """The branches of each operator that its readers have not taken yet."""
        self.ends: list[tuple[BranchedFrame, Branch, Write]] = []
        self.types: dict[str, tuple[str, ...]] = {}

    def sink_frame(self) -> DataFrame:
        query = self.query
        depths = find_depths(query.operators)
        for depth, exchange in enumerate(((), *query.exchanges)):
            if exchange:
                self._run_exchange(exchange)
            for node in query.operators:
                if depths[node] == depth and node not in exchange:
                    with translate_plan_errors(node.name):
                        for output in self._compile(node):
                            self._put(*output)
        return self._write()

    def _write(self) -> DataFrame:
        """The rows for the sinks."""
        query = self.query
        frames = [branched for branched, _, _ in self.ends]
        for waiting in self.waiting.values():
            for branched, branch in waiting:  # a source that is read only for its bad records
                branched.filter(branch, "false")
                frames.append(branched)
        if len(self.ends) == 1 and self.ends[0][2].topic is None:
            branched, branch, _ = self.ends[0]
            return branched.rows_of(branch)
        dead_letters = (*query.dead_letters, *self.key_groups.dead_letter_sources)
        nodes: tuple[Read | Write, ...] = (*query.sinks, *query.sources, *dead_letters)
        topics = {node: _topic(node) for node in nodes}
        outgoing = Outgoing(
            sinks=[(sink, topics[sink]) for sink in query.sinks],
            dead_letters=[(node, topics[node]) for node in dead_letters],
            side_channels=self.side_channels,
            sources=[topics[node] for node in query.sources],
            record_ids=self.record_ids,
            joined_version=self.joined.version,
        )
        outputs = []
        for branched in dict.fromkeys(frames):
            ends = [(each, sink, topics[sink]) for owner, each, sink in self.ends if owner is branched]
            outputs.append(outgoing.messages(branched, ends))
        return reduce(lambda united, frame: united.unionByName(frame, allowMissingColumns=True), outputs)

    def _compile(self, node: Operator) -> Iterator[tuple[Operator, BranchedFrame, Branch]]:
        """Compile an operator, and yield its output and those of operators that are compiled with it."""
        if isinstance(node, Write):
            self.ends.append((*self._take(node), node))
        elif node in self.chains:
            yield from self._run_chain(self.chains[node])
        elif not isinstance(node, (PythonOperator, SideOutput)):  # these are compiled with another operator
            yield (node, *self._output(node))

    def _put(self, output: Operator, branched: BranchedFrame, branch: Branch) -> None:
        """Keep an operator's output for its readers, with a branch for each."""
        readers = self.readers[output]
        branches = [branch]
        if readers > 1:
            branches = branched.split(branch, [next(self.numbers) for _ in range(readers)])
        self.waiting[output] = [(branched, each) for each in branches]

    def _take(self, node: Operator) -> tuple[BranchedFrame, Branch]:
        """A branch of the operator's first input."""
        return self.waiting[node.inputs[0]].pop()

    def _output(self, node: Operator) -> tuple[BranchedFrame, Branch]:  # noqa: C901 - a case for each kind
        match node:
            case Read():
                return self._read(node)
            case Union():
                return self._unite(node)
            case Select() | WithColumns():
                branched, branch = self._take(node)
                return branched, self._project(node, branched, branch)
            case Drop():
                branched, branch = self._take(node)
                columns = {name: branch.physical_names[name.lower()] for name in self.columns[node]}
                return branched, replace(branch, columns=columns)
            case Where():
                branched, branch = self._take(node)
                branched.filter(branch, branch.expression(node.condition))
                return branched, branch
            case Join():
                branched, branch = self._take(node)
                result = self.joined.frames[node.inputs[1]]
                own = {column.lower() for column in node.inputs[0].columns}
                if node.how == "left" and RECORD_ORDINAL not in result.columns and self.used[node] <= own:
                    return (
                        branched,
                        branch,
                    )  # at most one partner for each record, and its columns are not read
                right = branched.join(branch, result, node.on, node.how, self.record_ids.steps[node])
                known = {**{name.lower(): c for name, c in right.items()}, **branch.physical_names}
                return branched, replace(
                    branch, columns={name: known[name.lower()] for name in self.columns[node]}
                )
            case Apply():
                branched, branch = self._take(node)
                frame = batch.apply_function(node, branched.rows_of(branch))
                if kept := stateful_parts(frame):
                    self.types[node.name] = kept
                branched = BranchedFrame(frame, self.names, has_coordinates=False)
                return branched, Branch(next(self.numbers), {column: column for column in frame.columns})
            case Aggregate():
                label = None if self.query.mode.value == "realtime" else self.record_ids.states[node]
                branched, branch = apply_aggregate(
                    node, *self._take(node), label,
                    timed=self.query.carries_timestamps(node),
                    buffered=self.query.batch_interval_ms is not None,
                )  # fmt: skip
                self.types[node.name] = column_types(branched.frame.drop(RECORD_ID, RECORD_ORDINAL))
                return branched, branch
            case _:
                msg = f"operator {node.name!r} has no output of its own"
                raise PlanError(msg)

    def _run_chain(self, chain: Chain) -> Iterator[tuple[Operator, BranchedFrame, Branch]]:
        branched, branch = self._take(chain.head)
        others = self._other_columns(branched)
        branches = apply_chain(
            chain, branched, branch, used=self.used, numbers=self.numbers, steps=self.record_ids.steps,
            kept=[name for names in others.values() for name in names],
            check=self.context.settings.object_reuse_check, last=len(self.chains) == 1,
            kept_as=f"{self.key_groups.checkpoint}/{chain.name}",
        )  # fmt: skip
        for node, each in branches.items():
            if flush := find_buffer(node, self.query):
                yield (node, *apply_buffer(flush, branched, each, self.key_groups.of(node)))
            else:
                yield node, branched, each

    def _run_exchange(self, nodes: Sequence[StatefulOperator]) -> None:
        """Run operators of one depth; those that read the same operator share a branch."""
        readers = {parent: node for node in nodes for parent in node.inputs}
        taken = {parent: self._take(node) for parent, node in readers.items()}
        frames = list(dict.fromkeys(branched for branched, _ in taken.values()))
        before = merge_frames(frames)
        self._replace_frames(frames, before)
        members = []
        for node in nodes:
            with translate_plan_errors(node.name):
                members.append(self._prepare(node, before, taken[node.inputs[0]][1]))
        after, branches = run_exchange(members, before, self._other_columns(before), self.key_groups)
        self._replace_frames([before], after)
        for output, branch in branches.items():
            self._put(output, after, branch)

    def _prepare(self, node: StatefulOperator, branched: BranchedFrame, branch: Branch) -> StepMember:
        context = self.key_groups.of(node)
        match node:
            case Window():
                sides = find_side_outputs(node, self.query.operators)
                used = {column.lower() for each in sides for column in self.used[each]}
                return prepare_window(node, branched, branch, used, context)
            case KeyedProcess():
                check = self.context.settings.object_reuse_check
                return prepare_keyed_process(
                    node, branched, branch, context, self.chains.get(node), self.used, check
                )
            case _:
                msg = f"operator {node.name!r} has no form by key group"
                raise PlanError(msg)

    def _unite(self, node: Union) -> tuple[BranchedFrame, Branch]:
        members = [self.waiting[parent].pop() for parent in node.inputs]
        step = self.record_ids.steps[node]
        place = self.record_ids.of_place("topic", "partition", "offset")
        branched, branch = unite(members, self.columns[node], next(self.numbers), step, place)
        # The united frame also has the other branches of the same sources.
        self._replace_frames([owner for owner, _ in members], branched)
        return branched, branch

    def _replace_frames(self, gone: Collection[BranchedFrame], by: BranchedFrame) -> None:
        """Assign the branches of frames to the frame that has their rows now."""
        for parent, waiting in self.waiting.items():
            self.waiting[parent] = [(by if owner in gone else owner, each) for owner, each in waiting]
        self.ends = [(by if owner in gone else owner, each, sink) for owner, each, sink in self.ends]

    def _other_columns(self, branched: BranchedFrame) -> dict[int, list[str]]:
        """The columns that are used of a frame's branches that wait for a reader, by number of the branch."""
        others: list[tuple[Branch, Sequence[str]]] = [
            (each, self.columns[parent])
            for parent, waiting in self.waiting.items()
            for owner, each in waiting
            if owner is branched
        ]
        others += [(each, sink.columns) for owner, each, sink in self.ends if owner is branched]
        return {each.number: [each.physical_names[name.lower()] for name in names] for each, names in others}

    def _project(self, node: Select | WithColumns, branched: BranchedFrame, branch: Branch) -> Branch:
        """Plain columns keep their physical name; computed ones get a new one."""
        known = branch.physical_names
        plain, computed = {}, {}
        for name, expression in node.expressions:
            bare = expression.text.strip("`").lower()
            if bare in known and len(expression.references) == 1:
                plain[name.lower()] = known[bare]
            elif name.lower() in self.used[node] or expression.generates:
                computed[name] = branch.expression(expression)
        after = branched.compute(branch, computed, list(computed)).physical_names if computed else {}
        names = {**known, **plain, **after}
        return replace(branch, columns={name: names[name.lower()] for name in self.columns[node]})

    def _read(self, node: Read) -> tuple[BranchedFrame, Branch]:
        topic = _topic(node)
        incoming = Incoming(
            node=node,
            topic=topic,
            side_channels=self.side_channels,
            keeps_bad=node in self.query.dead_letters,
            has_ordinals=self.record_ids.has_ordinals,
            number=self.query.sources.index(node),
            may_fail=bool(self.chains),
        )
        branch = Branch(next(self.numbers), {name: next(self.names) for name in node.columns})
        messages = read_stream(topic, self.query, self.context, events=self.side_channels.has_markers)
        return incoming.read(messages, branch, self.names), branch


def _has_ordinals(query: LiveQuery, joined: Joined) -> bool:
    """Whether one record may become several.

    State by key group may have the ordinal in its layout, which must not depend on the keys of a table.
    """
    if any(node.repeats_records or isinstance(node, MapBatches) for node in query.operators):
        return True
    if query.keeps_key_groups:
        return any(isinstance(node, Join) and node.how in ("inner", "left") for node in query.operators)
    return any(RECORD_ORDINAL in frame.columns for frame in joined.frames.values())


def _count_branches(query: LiveQuery) -> dict[Operator, int]:
    """How many branches the output of each operator needs; operators of an exchange share one."""
    depths = find_depths(query.operators)
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
