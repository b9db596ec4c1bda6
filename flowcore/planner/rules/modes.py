"""Whether a live query may run in Spark's real-time mode.

It may if every operator compiles to native expressions, and sources and sinks are Kafka topics. Every
obstacle is named, so that a user sees what to change.
"""

from collections.abc import Iterator, Mapping

from flowcore.api.decisions import Decision, Obstacle
from flowcore.api.operators import Operator, PythonOperator, Union, Write
from flowcore.errors import PlanError
from flowcore.planner.model import Mode, find_live_sources
from flowcore.planner.rules.timestamps import brings_watermarks

__all__ = ["choose_mode"]


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


def _find_obstacles(operators: tuple[Operator, ...]) -> Iterator[Obstacle]:
    watermarked = brings_watermarks(operators)
    for node in operators:
        own = tuple(node.realtime_obstacles())
        yield from own
        tagged = node.topic is not None and node.topic.elements in ("tagged", "auto")
        if isinstance(node, Write) and watermarked and not own and tagged:
            yield Obstacle(
                f"{node.name} writes watermarks, which leave between two batches",
                f"give the topic of {node.name} elements='plain', if nobody reads its watermarks",
            )
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
            f"say {names} in Spark SQL (select, with_columns, where), or keep Python in another flow",
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
