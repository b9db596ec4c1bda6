"""Decide whether stream elements carry timestamps (FLIP-330), or only their values.

Tagged elements cost 9 bytes a record. They are needed where something asks for timestamps: a source with a
watermark strategy, periodic watermarks, an operator downstream that needs them, or the setting that keeps
timestamps in any case. Latency markers need none: they travel as events and not through the element
serializer.

The decision is made for each edge of a query, from the sources upstream of it and from its readers: where
nothing downstream reads a timestamp, none is carried. A blocking edge has none: a table crosses it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta

from flowcore.api.connectors import KafkaTopic
from flowcore.api.decisions import Decision
from flowcore.api.operators import (
    Apply,
    Deduplicate,
    Operator,
    Read,
    StatefulOperator,
    WithEventTime,
    Write,
    find_timed,
)
from flowcore.durations import show_duration
from flowcore.errors import PlanError
from flowcore.planner.model import Edge, LiveQuery
from flowcore.planner.ways import find_origins, find_upstream
from flowcore.settings import Settings
from flowcore.watermarks import WatermarkStrategy
from flowcore.watermarks.strategies import PeriodicFunction

__all__ = [
    "brings_watermarks",
    "choose_format",
    "decide_edges",
    "decide_topic_edges",
    "find_timed_sources",
    "find_untimed_sources",
    "require_watermarks",
    "uses_timestamps",
]


def choose_format(
    force: bool,
    auto_watermark_interval: timedelta,
    strategies: Mapping[str, WatermarkStrategy | None],
    tagged: Collection[str] = (),
) -> Decision:
    """``"tagged"`` with all reasons for timestamps, or ``"value-only"``.

    ``strategies`` are those of the sources upstream. Sources in ``tagged`` read tagged elements: without a
    strategy of their own they pass on the watermarks that arrive.

    Source: FLIP-330, Support specifying stream records without timestamps.
    """
    settings = []
    if force:
        settings.append("pipeline.force-timestamp-support is true")
    if auto_watermark_interval:
        settings.append(f"pipeline.auto-watermark-interval is {show_duration(auto_watermark_interval)}")
    sources = _find_watermarks(strategies, tagged)
    if sources:
        return Decision("tagged", (*settings, *sources))
    if settings:
        return Decision(
            "tagged",
            (
                *settings,
                "nothing else asks for timestamps",
            ),
            ("set pipeline.force-timestamp-support=false and pipeline.auto-watermark-interval=0",),
        )
    off = "pipeline.force-timestamp-support is false", "pipeline.auto-watermark-interval is 0"
    return Decision("value-only", (*off, "no source sets watermarks"))


def uses_timestamps(settings: Settings, strategies: Iterable[WatermarkStrategy | None]) -> bool:
    """Whether a job with these settings, and sources with these strategies, has tagged elements."""
    named = {f"source {number}": strategy for number, strategy in enumerate(strategies, 1)}
    return _choose(settings, named).value == "tagged"


def decide_edges(query: LiveQuery, operators: Iterable[Operator], settings: Settings) -> tuple[Edge, ...]:
    """Every edge that stream elements cross in a live query, inputs before readers.

    Args:
        operators: Those of the flow: timestamps cross its cuts.

    Raises:
        PlanError: A sink takes values only, and watermarks would arrive at it.
    """
    outer = decide_topic_edges(query.operators, settings)
    # Operators with state may ask for timestamps, and get watermarks.
    written = [each.sender for each in outer if each.elements.value == "tagged"]
    readers = [*query.keyed, *(sender for sender in written if isinstance(sender, Write))]
    needing = {end: node for end, node in _find_needing(operators).items() if end in query.operators}
    edges: list[Edge] = []
    for node in query.operators:
        edges += [each for each in outer if each.receiver is node]
        edges += [
            Edge(parent, node, _choose_carried(parent, readers, needing, settings))
            for parent in node.inputs
            if not parent.bounded
        ]
        edges += [each for each in outer if each.sender is node]
    return tuple(edges)


def decide_topic_edges(operators: Iterable[Operator], settings: Settings) -> tuple[Edge, ...]:
    """The edges to and from the topics of a stage or a query.

    Raises:
        PlanError: A sink takes values only, and watermarks would arrive at it.
    """
    edges: list[Edge] = []
    for node in operators:
        topic = node.topic
        if isinstance(node, Read) and topic:
            edges.append(Edge(topic, node, _declared(topic)))
        elif isinstance(node, Write) and topic:
            edges.append(Edge(node, topic, _choose_written(node, topic, settings)))
    return tuple(edges)


def require_watermarks(operators: Iterable[Operator], settings: Settings) -> None:
    """Check that the watermarks are emitted that windows by event time need.

    Raises:
        PlanError: The only watermarks are periodic, and the interval of polls is 0.
    """
    if settings.auto_watermark_interval:
        return
    for node in operators:
        origins = [*find_origins([node])] if node.needs_timestamps else []
        for origin in origins:
            written_by = origin.written_by if isinstance(origin, Read) else None
            origins += find_origins([written_by]) if written_by else ()
            strategy = origin.watermark
            if strategy is not None and strategy.periodic:
                what = "source" if isinstance(origin, Read) else "event time"
                msg = (
                    f"pipeline.auto-watermark-interval=0 and the {what} {origin.name!r} of {node.name!r} has "
                    f"periodic watermarks ({strategy}): none would be emitted, and no window would end; set "
                    "an interval such as 200 ms, or pass watermark=punctuated(...)"
                )
                raise PlanError(msg)


def brings_watermarks(operators: Iterable[Operator]) -> bool:
    """Whether one of these operators makes watermarks of its records, or reads control elements."""
    return any(
        (node.watermark is not None and node.watermark.generates)
        or (isinstance(node, Read) and node.topic is not None and node.topic.elements == "tagged")
        for node in operators
    )


def find_timed_sources(operators: Iterable[Operator]) -> frozenset[Read]:
    """The live sources whose records need a timestamp, since windows by event time read them."""
    origins = find_origins(node for node in operators if node.needs_timestamps)
    return frozenset(origin for origin in origins if isinstance(origin, Read))


def find_untimed_sources(query: LiveQuery, operators: Iterable[Operator]) -> frozenset[Read]:
    """The sources whose records need no timestamp in some branch of a query, and need one in other branches.

    The others may be in other queries, if bad records of the source leave through this one. ``operators`` are
    those of the flow.
    """
    needed = find_upstream(node for node in operators if isinstance(node, Write))
    own = find_timed_sources(query.operators)
    reached: list[Operator] = [*query.sinks, *query.assigners]
    for each in reached:
        if not each.needs_timestamps:
            reached += (parent for parent in each.inputs if parent not in reached)
    return own.intersection(reached) | find_timed_sources(needed).intersection(query.dead_letters) - own


def _choose(
    settings: Settings, strategies: Mapping[str, WatermarkStrategy | None], tagged: Collection[str] = ()
) -> Decision:
    return choose_format(
        settings.force_timestamp_support, settings.auto_watermark_interval, strategies, tagged
    )


def _find_needing(operators: Iterable[Operator]) -> Mapping[Operator, Operator]:
    """The operators, and the sinks of cuts, whose input must have timestamps.

    `join_latest` with ``load=None`` needs timestamps, and no watermarks. Timestamps cross a cut.

    Returns:
        For each of them the operator that needs the timestamps.
    """
    running = find_upstream(node for node in operators if isinstance(node, Write))
    found: dict[Operator, Operator] = {node: node for node in running if node.needs_timestamps}
    waiting = [*found]
    for end in waiting:
        for node in find_timed(end):
            cut = node.written_by if isinstance(node, Read) else None
            if cut is not None and cut not in found and node.topic and node.topic.event_time is None:
                found[cut] = found[end]
                waiting.append(cut)
    return found


def _choose_carried(
    sender: Operator,
    readers: Collection[Operator],
    needing: Mapping[Operator, Operator],
    settings: Settings,
) -> Decision:
    """Whether records that an operator of a live query emits carry timestamps."""
    decision = _choose(settings, *_sources(sender))
    if decision.value == "value-only":
        needs = (node for end, node in needing.items() if sender is not end and sender in find_timed(end))
        needed = next(needs, None)
        if needed is None:
            return decision
        decision = Decision("tagged", (f"{needed.name} needs the timestamps of its records",))
    # Branches share rows, so a timestamp is carried as long as any branch has a reader left.
    if all(node in sender.upstream for node in readers):
        change = "write to a topic with elements='tagged', if its readers need timestamps"
        return Decision("value-only", ("nothing downstream reads timestamps",), (change,))
    anew = _find_anew(sender, readers)
    if anew is not None:
        return Decision("value-only", (f"{anew} event time anew",))
    applied = [node.name for node in sender.upstream if isinstance(node, Apply) and not node.bounded]
    without = _find_without_timestamps(sender)
    if applied or without is not None:
        return Decision("value-only", (f"rows of {applied[0] if applied else without} have no timestamps",))
    return decision


def _find_without_timestamps(node: Operator) -> str | None:
    """The operator because of which no record of an operator has a timestamp; None if some may have one."""
    if not node.has_timestamps:
        return node.name
    if isinstance(node, WithEventTime) or (
        isinstance(node, StatefulOperator) and not isinstance(node, Deduplicate)
    ):
        return None  # it gives its records timestamps, or emits them at those of windows and timers
    found = [_find_without_timestamps(each) for each in node.inputs if not each.bounded]
    return found[0] if found and all(found) else None


def _find_anew(sender: Operator, readers: Collection[Operator]) -> str | None:
    """What assigns event time anew between a sender and all readers, in words; None if nothing does."""
    timed = dict.fromkeys(each for reader in readers for each in find_timed(reader))
    found = [each for each in timed if isinstance(each, WithEventTime) and sender in each.inputs[0].upstream]
    read = any(isinstance(each, Read) and not each.bounded for each in timed)
    names = " and ".join(each.name for each in found)
    return f"{names} {'assigns' if len(found) == 1 else 'assign'}" if found and not read else None


def _find_watermarks(
    strategies: Mapping[str, WatermarkStrategy | None], tagged: Collection[str]
) -> list[str]:
    reasons = []
    for source, strategy in strategies.items():
        if strategy is not None and strategy.generates:
            reasons.append(f"{source} sets watermarks ({strategy})")
        elif strategy is None and source in tagged:
            reasons.append(f"{source} reads watermarks with its tagged elements")
    return reasons


def _sources(node: Operator) -> tuple[dict[str, WatermarkStrategy | None], set[str]]:
    """The strategies of its event time by origin, and which of these are sources of tagged elements."""
    found = [
        each
        for each in find_timed(node)
        if isinstance(each, Read | WithEventTime) and each.bounded == node.bounded
    ]
    strategies = {each.name: each.watermark for each in found}
    return strategies, {each.name for each in found if each.topic and each.topic.elements == "tagged"}


def _declared(topic: KafkaTopic) -> Decision:
    return Decision(topic.elements, (f"its topic declares elements={topic.elements!r}",))


def _choose_written(sink: Write, topic: KafkaTopic, settings: Settings) -> Decision:
    if topic.elements != "auto" and sink.bounded:
        return _declared(topic)
    if sink.bounded:
        return Decision("value-only", ("rows of a table have no timestamps",))
    strategies, tagged = _sources(sink)
    watermarks = _find_watermarks(strategies, tagged)
    if topic.elements == "value-only" and watermarks:
        msg = (
            f"sink {sink.name!r}: topic {topic.name!r} takes values only, and {', '.join(watermarks)}: a "
            "watermark could not be written; pass elements='plain' to write no watermarks, 'tagged' to "
            "write them, or set no watermark strategy"
        )
        raise PlanError(msg)
    decision = _choose(settings, strategies, tagged) if topic.elements == "auto" else _declared(topic)
    functions = [
        name
        for name, strategy in strategies.items()
        if strategy is not None and isinstance(strategy.generator, PeriodicFunction)
    ]
    if decision.value == "tagged" and functions:
        msg = (
            f"sink {sink.name!r}: topic {topic.name!r} takes watermarks, and those of {', '.join(functions)} "
            "come from a Python function, which Spark cannot observe on the way to a sink; pass "
            "elements='plain', or say it in SQL with periodic('unix_millis(at) - 4000')"
        )
        raise PlanError(msg)
    return decision
