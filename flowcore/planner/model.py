"""The data of a plan: stages, live queries, chains and edges, each with the decisions about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from flowcore.api.connectors import KafkaTopic
from flowcore.api.decisions import Decision
from flowcore.api.operators import (
    ChainOperator,
    KeyedProcess,
    Operator,
    Read,
    StatefulOperator,
    WithEventTime,
    Write,
)
from flowcore.flush.config import BufferOutput
from flowcore.planner.ways import find_ways

__all__ = [
    "BoundedStage",
    "Chain",
    "Edge",
    "Flush",
    "FlushWay",
    "LiveQuery",
    "LiveStage",
    "Mode",
    "PlanData",
    "Result",
]

Mode = Literal["realtime", "micro-batch", "slice"]
FlushWay = Literal["off", "trigger", "key-groups", "with"]
UsedColumns = Mapping[Operator, frozenset[str]]
Failures = Mapping[Operator, Decision]

_EACH_BATCH = Decision("after each batch", ())
_WHILE_LAGGING = Decision("while a source lags", ())
_AT_LEAST_ONCE = Decision("at-least-once", ())
_NO = Decision("no", ())
_OFF = Decision("off", ())
_AT_ONCE = Decision("at once", ("it touches nothing that another stage writes",))
_NO_CHECKPOINT = Decision("none", ("it is batch: its output is committed as a whole, or not at all",))


@dataclass(frozen=True, slots=True)
class Chain:
    """Python operators that run in one call of a Python worker: a tree with one input.

    Attributes:
        operators: Inputs before readers; only the first reads from outside. If the first is a keyed process,
            the other operators run in the call of its key groups.
        copies: By ``(sender, receiver)``: ``"reuse"``, ``"shallow"`` or ``"deep"``.
        outputs: The operators whose records leave the chain, with the copy that is made for that.
    """

    operators: tuple[ChainOperator, ...]
    copies: Mapping[tuple[ChainOperator, ChainOperator], Decision] = field(hash=False)
    outputs: Mapping[ChainOperator, Decision] = field(hash=False)

    @property
    def head(self) -> ChainOperator:
        """The operator that reads from outside."""
        return self.operators[0]

    @property
    def process(self) -> KeyedProcess | None:
        """The keyed process at its head, None for another head."""
        return self.head if isinstance(self.head, KeyedProcess) else None

    @property
    def name(self) -> str:
        """The names of its operators: ``a > b``, and ``a > {b, c}`` where it branches."""
        return self._name(self.head)

    def receivers(self, sender: ChainOperator) -> tuple[ChainOperator, ...]:
        """The operators of the chain that read an operator's output, in the order of the flow."""
        return tuple(receiver for one, receiver in self.copies if one is sender)

    def _name(self, node: ChainOperator) -> str:
        names = [self._name(receiver) for receiver in self.receivers(node)]
        downstream = f"{{{', '.join(names)}}}" if len(names) > 1 else "".join(names)
        return f"{node.name} > {downstream}" if downstream else node.name


@dataclass(frozen=True, slots=True)
class Edge:
    """A connection of two operators, or of an operator and its topic, that stream elements cross.

    Attributes:
        sender: The operator, or the topic that is read.
        receiver: The operator, or the topic that is written.
        elements: ``"tagged"`` or ``"value-only"``, and why; to and from a topic also ``"plain"``. Tagged
            records have a column with their timestamp, value-only ones have none.
    """

    sender: Operator | KafkaTopic
    receiver: Operator | KafkaTopic
    elements: Decision

    @property
    def topic(self) -> KafkaTopic | None:
        """The topic, where one of the ends is a topic."""
        return next((end for end in (self.sender, self.receiver) if isinstance(end, KafkaTopic)), None)

    def __str__(self) -> str:
        ends = (self.sender, self.receiver)
        return " -> ".join(f"topic {end.name}" if isinstance(end, KafkaTopic) else end.name for end in ends)


@dataclass(frozen=True, slots=True)
class Flush:
    """Whether an operator of a live query buffers its output, to emit only the latest of each key.

    Attributes:
        way: ``"off"``. ``"trigger"``: the query's batches are as far apart as the interval, and each emits
            once for each key. ``"key-groups"``: a buffer keeps the latest output of each key over batches.
            ``"with"``: its input arrives once in an interval, so it needs no buffer.
        decision: The outcome in words, and why.
        key: The columns of which the latest output is kept (`Operator.buffer_key`). None where it is off.
        config: When the buffer is flushed, None where it is off.
        after: The upstream operator with whose flush it emits.
    """

    operator: Operator
    way: FlushWay
    decision: Decision
    key: tuple[str, ...] | None = None
    config: BufferOutput | None = None
    after: Operator | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A table that a bounded stage commits for live queries.

    Attributes:
        operator: The operator whose output it is; it gives the result its name.
        consumers: Names of the live operators that read it.
    """

    operator: Operator
    consumers: tuple[str, ...]

    @property
    def name(self) -> str:
        """The operator's name."""
        return self.operator.name


@dataclass(frozen=True, slots=True)
class BoundedStage:
    """A part of the flow whose input ends; it runs as one batch job.

    Attributes:
        name: The names of its results and sinks, joined by ``+``.
        operators: Inputs before readers.
        results: Tables for live queries; their edges are blocking.
        decision: Why it is a stage of its own.
        chains: Its Python operators, by call of a worker.
        checkpoint: The decision that no checkpoint is taken.
        after: Names of the stages that must be committed before it may start.
        start: When it starts, and why.
        edges: Those to and from its topics.
        used_columns: Of each operator, the output columns that its readers use, in lower case.
        failures: Of each operator with a user's function, what happens to a record for which it fails.
    """

    name: str
    operators: tuple[Operator, ...]
    results: tuple[Result, ...]
    sinks: tuple[Write, ...]
    decision: Decision
    chains: tuple[Chain, ...] = ()
    checkpoint: Decision = _NO_CHECKPOINT
    after: tuple[str, ...] = ()
    start: Decision = _AT_ONCE
    edges: tuple[Edge, ...] = ()
    used_columns: UsedColumns = field(default_factory=dict, hash=False)
    failures: Failures = field(default_factory=dict, hash=False)

    @property
    def sources(self) -> tuple[Read, ...]:
        """The sources that it reads."""
        return tuple(node for node in self.operators if isinstance(node, Read))


@dataclass(frozen=True, slots=True)
class LiveQuery:
    """One Structured Streaming query: one checkpoint, and an exchange for each depth of operators with state.

    Attributes:
        name: Names the checkpoint. It follows from the first source where branches share the query, so that
            branches come and go; otherwise it is the first sink.
        operators: Live operators only, inputs before readers.
        results: The bounded results it joins.
        dead_letters: The sources whose bad records leave through this query.
        split: Why it is a query of its own.
        chains: Its Python operators, by call of a worker.
        checkpoint: When one is taken, and whether anything is flushed for it.
        catch_up: Whether it then runs in micro-batches; ``"no"`` if it never changes its mode.
        after: Names of the bounded stages that must be committed before it may start.
        key_groups: In how many parts operators with state by key group keep it.
        idle_partitions: That some partitions of its state have no key group; None if each has one.
        latency: How often latency markers are sent through it.
        can_carry_markers: Whether latency markers can pass through it, whatever the settings are.
        flushes: Of each operator, whether its output is buffered.
        edges: The edges that stream elements cross in it, those to and from topics included.
        delivery: ``"at-least-once"`` or ``"exactly-once"``, of all its outputs.
        untimed_sources: The sources whose records need a timestamp in some branches only, or in other queries
            only if their bad records leave through this one.
        follows: The queries that write the topics of its cuts, in the order of its sources.
        key_group_dead_letters: The sources to whose dead letters failures in and downstream of its key groups
            go; none if a failure stops the query.
        counts_bad: The sources whose bad records it counts in micro-batches, for another query that writes
            them.
        joins: How each of its joins reads its result (`flowcore.planner.rules.joins`).
        used_columns: As of a `BoundedStage`; a buffer keeps all columns of its operator.
        failures: As of a `BoundedStage`.
    """

    name: str
    operators: tuple[Operator, ...]
    results: tuple[Operator, ...]
    sinks: tuple[Write, ...]
    dead_letters: tuple[Read, ...]
    mode: Decision
    split: Decision
    chains: tuple[Chain, ...] = ()
    checkpoint: Decision = _EACH_BATCH
    backlog: Decision = _WHILE_LAGGING
    catch_up: Decision = _NO
    after: tuple[str, ...] = ()
    start: Decision = _AT_ONCE
    key_groups: int = 16
    idle_partitions: Decision | None = None
    latency: Decision = _OFF
    can_carry_markers: bool = False
    flushes: tuple[Flush, ...] = ()
    edges: tuple[Edge, ...] = ()
    untimed_sources: frozenset[Read] = frozenset()
    delivery: Decision = _AT_LEAST_ONCE
    follows: tuple[str, ...] = ()
    key_group_dead_letters: tuple[Read, ...] = ()
    counts_bad: tuple[Read, ...] = ()
    joins: Mapping[Operator, Decision] = field(default_factory=dict, hash=False)
    used_columns: UsedColumns = field(default_factory=dict, hash=False)
    failures: Failures = field(default_factory=dict, hash=False)

    @property
    def sources(self) -> tuple[Read, ...]:
        """The sources that it reads."""
        return tuple(node for node in self.operators if isinstance(node, Read))

    @property
    def assigners(self) -> tuple[WithEventTime, ...]:
        """The operators that assign event time."""
        return tuple(node for node in self.operators if isinstance(node, WithEventTime))

    @property
    def tagged_sinks(self) -> tuple[Write, ...]:
        """The sinks that write tagged elements."""
        timestamped = self.timestamped
        return tuple(sink for sink in self.sinks if sink in timestamped)

    @property
    def topics_read(self) -> tuple[KafkaTopic, ...]:
        """The topics of its sources."""
        return tuple(topic for source in self.sources if (topic := source.topic))

    @property
    def topics_written(self) -> tuple[KafkaTopic, ...]:
        """The topics of its sinks."""
        return tuple(topic for sink in self.sinks if (topic := sink.topic))

    @property
    def buffers(self) -> Mapping[Operator, Flush]:
        """The buffers that it keeps by key group, upstream ones first, by operator."""
        return {each.operator: each for each in self.flushes if each.way == "key-groups"}

    @property
    def function_buffers(self) -> frozenset[Operator]:
        """The functions with a buffer, which is an operator by key group downstream of the function."""
        return frozenset(node for node in self.buffers if not isinstance(node, StatefulOperator))

    @property
    def keyed(self) -> tuple[Operator, ...]:
        """The operators that keep state by key group, and functions with a buffer, inputs before readers."""
        functions = self.function_buffers
        return tuple(
            node for node in self.operators if isinstance(node, StatefulOperator) or node in functions
        )

    @property
    def depths(self) -> Mapping[Operator, int]:
        """For the output of each operator, how many of `keyed`, itself included, are on its longest way."""
        depths, keyed = dict[Operator, int](), self.keyed
        for node in self.operators:
            depths[node] = max((depths.get(each, 0) for each in node.inputs), default=0) + (node in keyed)
        return depths

    @property
    def exchanges(self) -> tuple[tuple[Operator, ...], ...]:
        """`keyed` by depth: records are shuffled to a depth at once."""
        depths, keyed = self.depths, self.keyed
        return tuple(
            tuple(node for node in keyed if depths[node] == depth)
            for depth in sorted({depths[node] for node in keyed})
        )

    @property
    def shuffled_joins(self) -> tuple[Operator, ...]:
        """The joins whose table is distributed by key."""
        return tuple(node for node, decision in self.joins.items() if decision.value == "shuffle")

    @property
    def keeps_state(self) -> bool:
        """An operator or a buffer keeps state from batch to batch."""
        return self.keeps_key_groups or any(node.keeps_state for node in self.operators)

    @property
    def keeps_key_groups(self) -> bool:
        """An operator or a buffer keeps state by key group."""
        return bool(self.keyed)

    def find_senders(self, node: Operator) -> tuple[Operator, ...]:
        """The operators that begin channels and from which records reach an operator directly.

        Channels begin at sources, operators that assign event time, and operators by key group.
        """
        senders = {*self.sources, *self.assigners, *self.keyed}
        return tuple(each for each in find_ways(node, self.keyed) if each in senders)

    @property
    def batch_interval_ms(self) -> int | None:
        """The flush interval that its batches keep, None if batches may be closer."""
        by_trigger = (each.config for each in self.flushes if each.way == "trigger")
        return next((config.interval_ms for config in by_trigger if config is not None), None)

    @property
    def timestamped(self) -> frozenset[Operator]:
        """The operators whose records have their timestamps on their way to their readers."""
        tagged = (edge.sender for edge in self.edges if edge.elements.value == "tagged")
        return frozenset(sender for sender in tagged if isinstance(sender, Operator))

    @property
    def exactly_once(self) -> bool:
        """Its outputs are written in transactions."""
        return self.delivery.value == "exactly-once"


@dataclass(frozen=True, slots=True)
class LiveStage:
    """The unbounded part of the flow; each query starts when the stages it waits for are committed."""

    queries: tuple[LiveQuery, ...]

    @property
    def sources(self) -> tuple[Read, ...]:
        """The sources of its queries, each once."""
        return tuple(dict.fromkeys(source for query in self.queries for source in query.sources))


@dataclass(frozen=True, slots=True)
class PlanData:
    """What runs, in which order, and why.

    Attributes:
        flow: The flow's name.
        bounded: The bounded stages, in order.
        live: The live queries, None without any.
        filters: By the name of each `where` downstream of a Python function: whether it runs upstream of it.
    """

    flow: str
    bounded: tuple[BoundedStage, ...]
    live: LiveStage | None
    filters: tuple[tuple[str, Decision], ...] = ()

    @property
    def stages(self) -> tuple[BoundedStage | LiveStage, ...]:
        """Bounded stages, then the live one."""
        return (*self.bounded, *((self.live,) if self.live else ()))

    @property
    def live_queries(self) -> tuple[LiveQuery, ...]:
        """The live queries; none if the plan has no live stage."""
        return self.live.queries if self.live else ()

    @property
    def topics(self) -> tuple[tuple[Read | Write, KafkaTopic], ...]:
        """Every source and sink that is a Kafka topic, with the topic."""
        parts: tuple[BoundedStage | LiveQuery, ...] = (*self.bounded, *self.live_queries)
        nodes: list[Read | Write] = []
        for part in parts:
            nodes += [*part.sources, *part.sinks]
        pairs = ((node, node.topic) for node in dict.fromkeys(nodes))
        return tuple((node, topic) for node, topic in pairs if topic is not None)
