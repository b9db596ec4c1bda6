"""Modes: may a live query run in Spark's real-time mode?

Only where every operator compiles to native expressions and source and sink are Kafka. Everything
that stands in the way is named, so that a user can see what to change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowcore.api.decisions import Decision, Obstacle
from flowcore.api.operators import Operator, PythonOperator, Read, Union, Write, upstream
from flowcore.errors import PlanError
from flowcore.planner.model import Mode
from flowcore.planner.rules.timestamps import brings_watermarks

__all__ = ["choose_mode"]


def choose_mode(
    operators: tuple[Operator, ...], requested: Mode | None, held: Mapping[Operator, str] | None = None
) -> Decision:
    """The mode of the query made of these live operators.

    Args:
        operators: The live operators of one query.
        requested: What the user asked for; None for the fastest that is possible.
        held: Operators whose output is held back for an interval, and why; in real-time mode each change
            leaves at once. Who asks for that mode gets it, unless an operator has an interval of its own.

    Raises:
        PlanError: ``realtime`` was asked for and cannot be.
    """
    holding = {node: why for node, why in (held or {}).items() if node in operators}
    found = (*_obstacles(operators), *_flushes(holding, requested))
    obstacles = tuple(each.why for each in found)
    if requested == "slice":
        return Decision("slice", ("asked for: catch up, then stop",))
    if requested == "micro-batch":
        return Decision("micro-batch", ("asked for",))
    if not obstacles:
        return Decision("realtime", ("every operator is native, sources and sinks are Kafka topics",))
    if requested == "realtime":
        msg = (
            f"mode 'realtime' is not possible: {'; '.join(obstacles)}: Spark would refuse the query; "
            "change that, or run it with --mode micro-batch"
        )
        raise PlanError(msg)
    return Decision("micro-batch", obstacles, tuple(dict.fromkeys(each.change for each in found)))


def _obstacles(operators: tuple[Operator, ...]) -> Iterator[Obstacle]:
    """What stands in the way, and what to do about it."""
    watermarked = brings_watermarks(operators)
    for node in operators:
        own = tuple(node.realtime_obstacles())
        yield from own
        match node:
            case Write() if watermarked and not own and _takes_watermarks(node):
                yield Obstacle(
                    f"{node.name} writes watermarks, which leave between two batches",
                    f"give the topic of {node.name} elements='plain', if nobody reads its watermarks",
                )
            case Union() if _shared_source(node):
                yield Obstacle(
                    f"{node.name} unites two reads of one topic, which real-time mode refuses; read it once",
                    f"read the topic of {node.name} once",
                )
            case _:
                continue
    python = [node.name for node in operators if isinstance(node, PythonOperator)]
    if python:
        names = ", ".join(python)
        yield Obstacle(
            f"{names} {'are Python functions' if len(python) > 1 else 'is a Python function'}",
            f"say {names} in Spark SQL (select, with_columns, where), or keep Python in another flow",
        )


def _flushes(held: Mapping[Operator, str], requested: Mode | None) -> Iterator[Obstacle]:
    """Results that leave once in an interval, which real-time mode cannot do."""
    for node, why in held.items():
        # Anything else that is held back stands in the way anyway.
        if node.emits_once_a_batch and (requested != "realtime" or node.flush_ms):
            insist = "" if node.flush_ms else ", or ask for --mode realtime, which does without the interval"
            yield Obstacle(
                f"{node.name} is to leave once in an interval ({why}), and in real time each change leaves",
                f"give {node.name} flush=timedelta(0){insist}",
            )


def _shared_source(union: Union) -> bool:
    reads = {node for node in upstream(union) if isinstance(node, Read) and not node.bounded}
    topics = [(topic.servers, topic.name) for read in reads if (topic := read.topic)]
    return len(topics) != len(set(topics))


def _takes_watermarks(sink: Write) -> bool:
    topic = sink.topic
    return topic is not None and topic.elements in ("tagged", "auto")
