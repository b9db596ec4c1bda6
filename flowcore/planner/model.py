"""The data of a plan: stages, live queries, chains and edges, each with the decisions about it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from flowcore.api.connectors import KafkaTopic
from flowcore.api.decisions import Decision
from flowcore.api.operators import ChainOperator, KeyedProcess, Operator, Read, StatefulOperator, Write
from flowcore.flush.config import BufferOutput

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
    "find_depths",
    "find_live_sources",
    "find_senders",
    "find_upstream",
    "find_ways",
]

Mode = Literal["realtime", "micro-batch", "slice"]
FlushWay = Literal["off", "trigger", "key-groups", "with"]

_EACH_BATCH = Decision("after each batch", ())
_WHILE_LAGGING = Decision("while a source lags", ())
_NO = Decision("no", ())
_OFF = Decision("off", ())
_AT_ONCE = Decision("at once", ("it touches nothing that another stage writes",))
_NO_CHECKPOINT = Decision("none", ("it is batch: what it leaves is committed as a whole, or not at all",))


@dataclass(frozen=True, slots=True)
class Chain:
    """Python operators that run in one call of a Python worker: a tree with one input.

    Attributes:
        operators: Inputs before readers; only the first reads from outside. If that is a keyed process, the
            others run in the call of its key groups.
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
        """The operators of the chain that read the output of one of them, in the order of the flow."""
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
        operator: The operator.
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
    """A table that a bounded stage leaves for live queries.

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
        sinks: Bounded sinks.
        decision: Why it is a stage of its own.
        chains: Its Python operators, by call of a worker.
        checkpoint: None is ever taken.
        after: Names of the stages that must be committed before it may start.
        start: When it starts, and why.
        edges: Those to and from its topics.
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
        sinks: What it writes.
        dead_letters: The sources whose bad records leave through this query.
        mode: How it runs, and why.
        split: Why it is a query of its own.
        chains: Its Python operators, by call of a worker.
        checkpoint: When one is taken, and whether anything is flushed for it.
        backlog: When it is in backlog.
        catch_up: Whether it then runs in micro-batches; ``"no"`` if it never changes its mode.
        after: Names of the bounded stages that must be committed before it may start.
        start: When it starts, and why.
        key_groups: In how many parts windows and process functions keep their state.
        latency: How often latency markers are sent through it.
        flushes: Of each operator, whether its output is buffered.
        edges: The edges that stream elements cross in it, those to and from topics included.
        untimed_sources: The sources whose records need a timestamp in some branches only, or in other queries
            only if their bad records leave through this one.
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
    latency: Decision = _OFF
    flushes: tuple[Flush, ...] = ()
    edges: tuple[Edge, ...] = ()
    untimed_sources: frozenset[Read] = frozenset()

    @property
    def sources(self) -> tuple[Read, ...]:
        """The sources that it reads."""
        return tuple(node for node in self.operators if isinstance(node, Read))

    @property
    def exchanges(self) -> tuple[tuple[StatefulOperator, ...], ...]:
        """The operators with state by key group, by depth: records are shuffled to a depth at once."""
        depths = find_depths(self.operators)
        found: dict[int, list[StatefulOperator]] = {}
        for node in self.operators:
            if isinstance(node, StatefulOperator):
                found.setdefault(depths[node], []).append(node)
        return tuple(tuple(found[depth]) for depth in sorted(found))

    @property
    def buffers(self) -> Mapping[Operator, Flush]:
        """The buffers that it keeps by key group, upstream ones first, by operator."""
        return {each.operator: each for each in self.flushes if each.way == "key-groups"}

    @property
    def keeps_state(self) -> bool:
        """An operator or a buffer keeps state from batch to batch."""
        return bool(self.buffers) or any(node.keeps_state for node in self.operators)

    @property
    def keeps_key_groups(self) -> bool:
        """An operator or a buffer keeps state by key group."""
        return bool(self.buffers) or any(isinstance(node, StatefulOperator) for node in self.operators)

    @property
    def batch_interval_ms(self) -> int | None:
        """The flush interval that its batches keep, None if batches may be closer."""
        by_trigger = (each.config for each in self.flushes if each.way == "trigger")
        return next((config.interval_ms for config in by_trigger if config is not None), None)

    def carries_timestamps(self, sender: Operator) -> bool:
        """Whether the records that an operator emits have their timestamps on their way to its readers."""
        return any(edge.sender is sender and edge.elements.value == "tagged" for edge in self.edges)

    @property
    def updating(self) -> bool:
        """Its later output replaces earlier output."""
        return any(node.updating for node in self.operators)


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
        nodes: list[Read | Write] = []
        for stage in self.bounded:
            nodes += [*stage.sources, *stage.sinks]
        for query in self.live_queries:
            nodes += [*query.sources, *query.sinks]
        pairs = ((node, node.topic) for node in dict.fromkeys(nodes))
        return tuple((node, topic) for node, topic in pairs if topic is not None)


def find_depths(operators: Iterable[Operator]) -> dict[Operator, int]:
    """For operators, inputs before readers: how many of them with state by key group are on the longest way.

    An operator with state counts itself.
    """
    depths: dict[Operator, int] = {}
    for node in operators:
        before = max((depths.get(each, 0) for each in node.inputs), default=0)
        depths[node] = before + isinstance(node, StatefulOperator)
    return depths


def find_ways(node: Operator) -> tuple[Operator, ...]:
    """The operators whose records reach an operator without another one with state between them."""
    found = [*node.inputs]
    for each in found:
        if not isinstance(each, StatefulOperator):
            found += (parent for parent in each.inputs if parent not in found)
    return tuple(dict.fromkeys(each for each in found if not each.bounded))


def find_senders(node: Operator) -> tuple[Operator, ...]:
    """The unbounded sources and operators with state by key group at the beginning of `find_ways`."""
    return tuple(each for each in find_ways(node) if isinstance(each, (Read, StatefulOperator)))


def find_upstream(ends: Iterable[Operator]) -> tuple[Operator, ...]:
    """Every operator that some operators depend on, and these, inputs before readers, each once."""
    return tuple(dict.fromkeys(node for end in ends for node in end.upstream))


def find_live_sources(ends: Iterable[Operator]) -> list[Read]:
    """The unbounded sources that some operators depend on, each once."""
    return [node for node in find_upstream(ends) if isinstance(node, Read) and not node.bounded]
