"""The data of a plan: stages, live queries, chains and edges, each with the decisions about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from flowcore.api.connectors import KafkaTopic
from flowcore.api.decisions import Decision
from flowcore.api.operators import ChainOperator, KeyedProcess, Operator, Read, Write
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
    """Python operators that run in one call of a Python worker: a tree, with one input.

    Attributes:
        operators: Inputs before readers; the first is the only one that reads from outside. That may be a
            keyed process; the others then run in the call of its key groups.
        copies: Between two of them, ``(sender, receiver)``: ``"reuse"``, ``"shallow"`` or ``"deep"``.
        outputs: Those whose records leave the chain, each with the copy that is made for the way out.
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
        """The keyed process that it begins with, if it does."""
        return self.head if isinstance(self.head, KeyedProcess) else None

    @property
    def name(self) -> str:
        """The names of its operators: ``a > b``, and ``a > {b, c}`` where it parts."""
        return self._name(self.head)

    def receivers(self, sender: ChainOperator) -> tuple[ChainOperator, ...]:
        """The operators of the chain that read what one of them puts out, in the order of the flow."""
        return tuple(receiver for one, receiver in self.copies if one is sender)

    def _name(self, node: ChainOperator) -> str:
        names = [self._name(receiver) for receiver in self.receivers(node)]
        behind = f"{{{', '.join(names)}}}" if len(names) > 1 else "".join(names)
        return f"{node.name} > {behind}" if behind else node.name


@dataclass(frozen=True, slots=True)
class Edge:
    """What stream elements cross: from operator to operator, or between an operator and its topic.

    Attributes:
        sender: The operator, or the topic that is read.
        receiver: The operator, or the topic that is written.
        elements: ``"tagged"`` or ``"value-only"``, and why; to and from a topic also ``"plain"``.
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
    """Whether an operator of a live query holds its output back, so that only the latest of each key leaves.

    Attributes:
        operator: Whose output it is.
        way: ``"off"``. ``"trigger"``: the query's batches are as far apart as the interval, and each puts out
            once for each key. ``"key-groups"``: a buffer behind the operator keeps the latest of each key
            over batches. ``"with"``: what it reads comes once in an interval, so it holds nothing itself.
        decision: The outcome in words, and why.
        key: The columns of which the latest output is kept: of its output, of a process function of its
            input. None where it is off.
        config: When a buffer lets go, None where it is off.
        after: The operator in front of it, in the same query, with whose flush it leaves.
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
        name: The names of what it leaves, joined by ``+``.
        operators: Inputs before readers.
        results: Tables for live queries; the edges behind them are blocking.
        sinks: Bounded sinks.
        decision: Why it is a stage of its own.
        chains: Its Python operators, by call of a worker.
        checkpoint: None is ever taken.
        after: Names of the stages that have to be committed before it may start.
        start: When it starts, and why.
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

    @property
    def sources(self) -> tuple[Read, ...]:
        """What it reads."""
        return tuple(node for node in self.operators if isinstance(node, Read))


@dataclass(frozen=True, slots=True)
class LiveQuery:
    """One Structured Streaming query: one checkpoint, at most one operator with state.

    Attributes:
        name: Names the checkpoint; its first sink, or the source where branches without state share it.
        operators: Live operators only, inputs before readers.
        results: The bounded results it joins.
        sinks: What it writes.
        dead_letters: The sources whose bad records leave through this query.
        mode: How it runs, and why.
        split: Why it is a query of its own.
        chains: Its Python operators, by call of a worker.
        checkpoint: When one is taken, and whether anything is flushed for it.
        backlog: When what it reads counts as history.
        catch_up: Whether it runs in micro-batches until then; ``"no"`` if it never changes its mode.
        after: Names of the bounded stages that have to be committed before it may start.
        start: When it starts, and why.
        key_groups: In how many parts windows and process functions keep their state.
        latency: How often latency markers are sent through it.
        flushes: Of each operator, whether it holds its output back.
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

    @property
    def sources(self) -> tuple[Read, ...]:
        """What it reads."""
        return tuple(node for node in self.operators if isinstance(node, Read))

    @property
    def buffer(self) -> Flush | None:
        """The one buffer that it keeps by key group, if it has one."""
        return next((each for each in self.flushes if each.way == "key-groups"), None)

    @property
    def batch_interval_ms(self) -> int | None:
        """How far apart its batches are so that results leave no more often, None if that does not matter."""
        by_trigger = (each.config for each in self.flushes if each.way == "trigger")
        return next((config.interval_ms for config in by_trigger if config is not None), None)

    @property
    def updating(self) -> bool:
        """What it writes replaces what it wrote before."""
        return any(node.updating for node in self.operators)


@dataclass(frozen=True, slots=True)
class LiveStage:
    """The unbounded part of the flow; each query starts when the stages it waits for are committed."""

    queries: tuple[LiveQuery, ...]

    @property
    def sources(self) -> tuple[Read, ...]:
        """What its queries read, each once."""
        return tuple(dict.fromkeys(source for query in self.queries for source in query.sources))


@dataclass(frozen=True, slots=True)
class PlanData:
    """What runs, in which order, and why.

    Attributes:
        flow: The flow's name.
        bounded: What runs as batch, first ones first.
        live: What runs without end, if anything does.
        edges: What stream elements cross, and in what form; blocking edges are not among them.
        filters: Of each `where` behind a Python function: is it done before it?
    """

    flow: str
    bounded: tuple[BoundedStage, ...]
    live: LiveStage | None
    edges: tuple[Edge, ...] = ()
    filters: tuple[tuple[str, Decision], ...] = ()

    def edges_of(self, operators: Iterable[Operator]) -> tuple[Edge, ...]:
        """The edges between some operators, those to and from their topics included."""
        members = {*operators}
        return tuple(
            edge
            for edge in self.edges
            if all(isinstance(end, KafkaTopic) or end in members for end in (edge.sender, edge.receiver))
        )

    @property
    def stages(self) -> tuple[BoundedStage | LiveStage, ...]:
        """Bounded stages, then the live one."""
        return (*self.bounded, *((self.live,) if self.live else ()))

    @property
    def topics(self) -> tuple[tuple[Read | Write, KafkaTopic], ...]:
        """Every source and sink that is a Kafka topic, with the topic."""
        nodes: list[Read | Write] = []
        for stage in self.bounded:
            nodes += [*stage.sources, *stage.sinks]
        for query in self.live.queries if self.live else ():
            nodes += [*query.sources, *query.sinks]
        pairs = ((node, node.topic) for node in dict.fromkeys(nodes))
        return tuple((node, topic) for node, topic in pairs if topic is not None)
