"""Decide how a live query runs: mode, start, checkpoints, backlog, latency markers, delivery.

- It may run in Spark's real-time mode if every operator compiles to native expressions, and sources and sinks
  are Kafka topics. Every obstacle is named, so that a user sees what to change.
- It starts after all bounded stages, unless ``execution.result-visibility`` is ``pipelined`` (future work of
  FLIP-331): then it starts when the results that it joins are committed, while other stages still run. A part
  of a table is never read: a record that is joined before its partner exists would be emitted without the
  partner, and never corrected.
- Nothing is flushed for a checkpoint where no operator asks for it, since a flush costs output that nothing
  else needs.
- A blocking edge with pending records counts as a source in backlog. A query's records are backlog while any
  of its inputs is in backlog (`flowcore.backlog`).
- Latency markers travel in the query's frame beside the records. They need a topic at each end, and no
  operator in between that takes the whole frame.
- If a sink asks for exactly-once delivery, its query writes all outputs in the same transactions: with a part
  of them outside, a repeated batch would write that part twice.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from flowcore.api.decisions import Decision, Obstacle
from flowcore.api.operators import Operator, PythonOperator, Union, Write
from flowcore.backlog import LEAST_RECORDS, CheckpointInterval, Thresholds
from flowcore.durations import show_duration
from flowcore.errors import PlanError
from flowcore.planner.model import BoundedStage, LiveQuery, Mode
from flowcore.planner.rules.timestamps import brings_watermarks
from flowcore.planner.ways import find_live_sources
from flowcore.settings import Settings

__all__ = [
    "can_carry_markers",
    "choose_mode",
    "decide_backlog",
    "decide_catch_up",
    "decide_checkpoint",
    "decide_delivery",
    "decide_latency",
    "find_idle_partitions",
    "read_backlog_interval",
    "read_thresholds",
    "require_live_delivery",
    "set_start",
]


_MS = 1000


def choose_mode(
    operators: tuple[Operator, ...], requested: Mode | None, buffered: Mapping[Operator, str] | None = None
) -> Decision:
    """The mode of the query made of these live operators: the requested one, or the fastest possible.

    ``buffered`` says which operators have a flush interval, and why. Real-time mode emits each change at
    once; a user who asks for it gets it, unless an operator has an interval of its own.

    Raises:
        PlanError: ``realtime`` was asked for and is not possible.
    """
    found = (*_find_obstacles(operators), *_find_flushes(operators, buffered or {}, requested))
    obstacles = _merge_reasons(found, operators)
    if requested == "slice":
        return Decision("slice", ("asked for: catch up, then stop",))
    if requested == "micro-batch":
        return Decision("micro-batch", ("asked for",))
    if not obstacles:
        return Decision("realtime", ("every operator is native, sources and sinks are Kafka topics",))
    changes = dict.fromkeys(each.change for each in found if each.change)
    if requested == "realtime":
        # One change alone does not help beside an obstacle that nothing removes.
        change = " and ".join(changes) + ", or " if all(each.change for each in found) else ""
        why = "; ".join(obstacles)
        msg = f"mode 'realtime' is not possible: {why}; {change}run it with --mode micro-batch"
        raise PlanError(msg)
    return Decision("micro-batch", obstacles, tuple(changes))


def read_thresholds(settings: Settings) -> Thresholds:
    """When a source is in backlog.

    Raises:
        ConfigurationError: ``backlog.leave`` is not below ``backlog.enter``.
    """
    return Thresholds(settings.backlog_enter, settings.backlog_leave)


def read_backlog_interval(settings: Settings) -> CheckpointInterval:
    """The time between checkpoints, in backlog and out of it.

    Raises:
        ConfigurationError: The interval in backlog is the shorter one.
    """
    backlog = settings.backlog_checkpoints
    return CheckpointInterval(
        round(settings.realtime_batch.total_seconds() * _MS),
        None if backlog is None else round(backlog.total_seconds() * _MS),
    )


def decide_backlog(query: LiveQuery, settings: Settings) -> Decision:
    """When a live query is in backlog."""
    pending = [node.name for node in query.results]
    lagging = ", ".join(node.name for node in query.sources)
    limits = read_thresholds(settings)
    reasons = [f"the edge from {name} is blocking: what is pending there is backlog" for name in pending]
    reasons.append(
        f"a partition of {lagging} has over {limits.enter:,} unread records (backlog.enter), until none has "
        f"over {limits.leave:,} (backlog.leave)"
    )
    are = "are" if len(pending) > 1 else "is"
    until = f"until {', '.join(pending)} {are} committed, and " if pending else ""
    return Decision(f"{until}while {lagging} lags", tuple(reasons))


def decide_catch_up(query: LiveQuery, requested: Mode | None, settings: Settings) -> Decision:
    """Whether a live query leaves its mode while it is in backlog: ``"in micro-batches"`` or ``"no"``."""
    if requested is not None:
        return Decision("no", (f"mode {requested} was asked for",), ("run it with --mode auto",))
    if query.mode.value != "realtime":
        return Decision("no", ("it runs in micro-batches anyway, each of all that is there",))
    interval_ms = read_backlog_interval(settings).interval_ms_in(backlog=True)
    time = f"what it reads in {interval_ms / _MS:g} s, at least {LEAST_RECORDS:,}" if interval_ms else ""
    least = f" or {time}, if that is less" if time else ""
    limit = f"{settings.max_batch_records:,} records (execution.max-records-per-batch)"
    return Decision(
        "in micro-batches",
        ("they read a backlog faster than real-time mode", f"each has up to {limit}{least}"),
    )


def set_start(query: LiveQuery, stages: tuple[BoundedStage, ...], settings: Settings) -> LiveQuery:
    """The query with the stages that it starts after."""
    after = tuple(stage.name for stage in stages)
    joined = tuple(
        stage.name
        for stage in stages
        if not {result.operator for result in stage.results}.isdisjoint(query.results)
    )
    others = ", ".join(name for name in after if name not in joined)
    change: tuple[str, ...] = ()
    if not after:
        reasons: tuple[str, ...] = ("the flow has no bounded stage",)
    elif not others:
        reasons = ("it joins a table of each bounded stage, and of a table never a part",)
    elif settings.result_visibility == "whole":
        reasons, change = (
            ("execution.result-visibility is whole",),
            ("set execution.result-visibility to pipelined",),
        )
    elif query.follows or any(sink.is_cut for sink in query.sinks):
        reasons = ("queries that a cut joins start together",)
    elif settings.latency_interval:
        reasons = ("the latency markers of a source are for all of its queries, so these start together",)
        change = ("set metrics.latency.interval to 0",)
    else:
        after, reasons = joined, ("execution.result-visibility is pipelined", f"it joins nothing of {others}")
    when = f"when {', '.join(after)} {'are' if len(after) > 1 else 'is'} committed" if after else "at once"
    if query.follows and query.mode.value == "slice":
        writers = ", ".join(query.follows)
        when = f"when {writers} {'have' if len(query.follows) > 1 else 'has'} ended"
        reasons, change = (f"what {writers} writes in this slice is then in the topic of the cut",), ()
    return replace(query, after=after, start=Decision(when, reasons, change))


def decide_checkpoint(query: LiveQuery, settings: Settings) -> Decision:
    """When a live query takes a checkpoint, and which operators flush before it."""
    flushed = [
        f"the buffer of {node.name} is flushed before it (output_on_checkpoint)"
        if node in query.buffers
        else f"{node.name} keeps no output back, so that nothing is flushed for it (output_on_checkpoint)"
        for node in query.operators
        if node.attributes().output_on_checkpoint
    ] or ["nothing is flushed before it, as no operator declares output_on_checkpoint"]
    if query.mode.value != "realtime":
        return Decision("after each batch", (f"{query.mode.value} takes one with each batch", *flushed))
    interval = show_duration(settings.realtime_batch)
    return Decision(f"every {interval}", (f"execution.realtime.batch-duration is {interval}", *flushed))


def find_idle_partitions(query: LiveQuery, settings: Settings) -> Decision | None:
    """Whether some partitions of the state have no work, as they have no key group."""
    partitions, groups = settings.shuffle_partitions, settings.key_groups
    if not query.keeps_key_groups or partitions <= groups:
        return None
    change = (
        f"set execution.shuffle-partitions to {groups} or less, or state.key-groups to {partitions} or more"
    )
    return Decision(
        f"{partitions - groups} of {partitions} shuffle partitions have no work",
        (f"state.key-groups is {groups}, and a key group is in one partition",),
        (change,),
    )


def can_carry_markers(query: LiveQuery) -> bool:
    """Whether markers can pass through a query, whatever the settings are."""
    return not any(_find_marker_obstacles(query))


def decide_latency(query: LiveQuery, settings: Settings) -> Decision:
    """How often markers are sent through a query; ``"off"``, or ``"not possible"``."""
    found = tuple(_find_marker_obstacles(query))
    reasons = tuple(each.why for each in found)
    changes = tuple(each.change for each in found if each.change)
    if not settings.latency_interval:
        setting = "set metrics.latency.interval, for instance to '1 s'"
        return Decision("off", ("metrics.latency.interval is 0", *reasons), (setting, *changes))
    if found:
        return Decision("not possible", reasons, changes)
    interval = show_duration(settings.latency_interval)
    return Decision(f"every {interval}", (f"metrics.latency.interval is {interval}",))


def decide_delivery(query: LiveQuery, settings: Settings) -> Decision:
    """How often a query writes its outputs."""
    asked = [sink.name for sink in query.sinks if sink.exactly_once]
    if not asked:
        why = "a batch that is repeated after a failure writes its records again, with the same flowcore-id"
        topics = [sink.name for sink in query.sinks if sink.topic is not None]
        change = (f"give {' or '.join(topics)} delivery='exactly-once'",) if topics else ()
        return Decision("at-least-once", (why,), change)
    slots = settings.shuffle_partitions
    transactions = f"{slots} transaction{'s' * (slots > 1)}"
    reasons = [
        f"{', '.join(asked)} {'ask' if len(asked) > 1 else 'asks'} for it (delivery)",
        f"each batch is written in {transactions} (execution.shuffle-partitions, fixed by the checkpoint)",
        "readers of committed records see each record once, one transaction perhaps before another",
    ]
    others = [sink.name for sink in query.sinks if not sink.exactly_once]
    others += [f"bad records of {source.name}" for source in query.dead_letters]
    if others:
        reasons.append(f"in the same transactions: {', '.join(others)}")
    return Decision("exactly-once", tuple(reasons))


def require_live_delivery(stages: Iterable[BoundedStage]) -> None:
    """Check that no bounded stage has a sink with exactly-once delivery.

    Raises:
        PlanError: A bounded stage has such a sink.
    """
    for stage in stages:
        for sink in stage.sinks:
            if sink.exactly_once:
                msg = (
                    f"sink {sink.name!r} asks for delivery='exactly-once', and its input is bounded: a stage "
                    "that fails while it writes a topic writes its rows again; leave delivery out, and let "
                    "readers drop repeats by flowcore-id"
                )
                raise PlanError(msg)


def _find_obstacles(operators: tuple[Operator, ...]) -> Iterator[Obstacle]:
    watermarked = brings_watermarks(operators)
    for node in operators:
        own = tuple(node.realtime_obstacles())
        yield from own
        tagged = node.topic is not None and node.topic.elements in ("tagged", "auto")
        if isinstance(node, Write) and watermarked and not own and tagged:
            plain = f"give the topic of {node.name} elements='plain', if nobody reads its watermarks"
            why = f"{node.name} writes watermarks, which leave between two batches"
            yield Obstacle(why, "" if node.is_cut else plain)
        elif isinstance(node, Union):
            topics = [(each.servers, each.name) for read in find_live_sources([node]) if (each := read.topic)]
            if len(topics) != len(set(topics)):
                yield Obstacle(
                    f"{node.name} unites two reads of one topic, which real-time mode refuses; read it once",
                    f"read the topic of {node.name} once",
                )
    python = [node.name for node in operators if isinstance(node, PythonOperator)]
    if python:
        names = ", ".join(python)
        yield Obstacle(
            f"{names} {'are Python functions' if len(python) > 1 else 'is a Python function'}",
            f"say {names} in Spark SQL (select, with_columns, where), or cut the flow with .through('topic')",
        )


def _merge_reasons(found: Iterable[Obstacle], operators: Iterable[Operator]) -> tuple[str, ...]:
    """The reasons, with one that holds for several operators once."""
    names = [node.name for node in operators]
    merged: dict[str, list[str]] = {}
    for why in (each.why for each in found):
        name, _, rest = why.partition(" ")
        if name in names:
            merged.setdefault(rest, []).append(name)
        else:
            merged[why] = []
    return tuple(
        f"each of {', '.join(each[:-1])} and {each[-1]} {why}" if len(each) > 1 else " ".join([*each, why])
        for why, each in merged.items()
    )


def _find_flushes(
    operators: tuple[Operator, ...], buffered: Mapping[Operator, str], requested: Mode | None
) -> Iterator[Obstacle]:
    """Results that are emitted once in an interval, which real-time mode cannot do."""
    for node, why in buffered.items():
        # Other buffered operators are obstacles anyway.
        if node in operators and node.emits_once_a_batch and (requested != "realtime" or node.flush_ms):
            insist = "" if node.flush_ms else ", or ask for --mode realtime, which ignores the interval"
            yield Obstacle(
                f"{node.name} has a flush interval ({why}), and real-time mode emits each change at once",
                f"give {node.name} flush=timedelta(0){insist}",
            )


def _find_marker_obstacles(query: LiveQuery) -> Iterator[Obstacle]:
    if not query.sinks:
        yield Obstacle("it writes nothing but dead letters")
    for node in query.operators:
        if node.takes_whole_frame:
            yield Obstacle(
                f"{node.name} is a DataFrame function, which would get the markers as records",
                f"say {node.name} in Spark SQL (select, with_columns, where, aggregate)",
            )
    for end in (*query.sources, *query.sinks):
        if end.topic is None:
            yield Obstacle(
                f"{end.name} is not a Kafka topic, and markers travel beside topics",
                f"let {end.name} be a KafkaTopic",
            )
