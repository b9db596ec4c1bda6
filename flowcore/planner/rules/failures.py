"""Failures: what becomes of a record for which a user's function fails?

It goes where the unreadable messages of its source go, with its bytes, and the query goes on; unless the
source asks to stop, or the record cannot leave the query as it came. From a key group, which has no messages,
goes what the function was given.
"""

from __future__ import annotations

from flowcore.api.decisions import Decision
from flowcore.api.operators import (
    MapBatches,
    Operator,
    PythonOperator,
    Read,
    StatefulOperator,
    upstream,
)
from flowcore.planner.model import BoundedStage, LiveQuery

__all__ = ["decide_failure", "select_dead_letter_sources"]


def decide_failure(node: Operator, runs: BoundedStage | LiveQuery) -> Decision | None:
    """``"dead letter"``, or that it stops what runs it; None for what is no Python function."""
    if not node.calls_user_functions:
        return None
    if isinstance(runs, BoundedStage):
        return Decision("stops the stage", ("a result is complete, or it is none",))
    if isinstance(node, StatefulOperator):
        return _of_key_group(node, runs, "what the function was given")
    batched = [each.name for each in upstream(node) if isinstance(each, MapBatches) and not each.bounded]
    if batched:
        return Decision(
            "stops the query",
            (f"{batched[0]} is given batches, so nobody can tell for which record it failed",),
            (f"use map or flat_map instead of {batched[0]}",),
        )
    process = next((chain.process for chain in runs.chains if node in chain.operators), None)
    if process is not None:
        return _of_key_group(node, runs, f"what {process.name} had put out for it")
    sources = [each for each in upstream(node) if isinstance(each, Read) and not each.bounded]
    strict = [each.name for each in sources if (topic := each.topic) and topic.on_error == "fail"]
    if len(strict) == len(sources):
        return Decision(
            "stops the query",
            (f"{', '.join(strict)} says on_error='fail'",),
            ("declare on_error='dead-letter' on the topic",),
        )
    if not runs.dead_letters:
        return Decision(
            "stops the query",
            (f"no bad record can leave it, as {' and '.join(runs.split.reasons)}",),
            (f"write what {node.name} puts out to a topic, and go on from that in another flow",),
        )
    letters = [f"{each.name}.dead-letter" for each in sources if each in runs.dead_letters]
    but = (f"records of {', '.join(strict)} stop it, as on_error='fail' says",) if strict else ()
    return Decision("dead letter", (f"the message goes to {', '.join(letters)} as it came", *but))


def select_dead_letter_sources(query: LiveQuery) -> tuple[Read, ...]:
    """The sources to whose dead letters goes what fails in the query's key groups; none if that stops it."""
    if not any(isinstance(node, StatefulOperator) for node in query.operators):
        return ()
    if not all(sink.topic for sink in query.sinks):
        return ()
    return tuple(each for each in query.sources if (topic := each.topic) and topic.on_error != "fail")


def _of_key_group(node: Operator, query: LiveQuery, content: str) -> Decision:
    letters = select_dead_letter_sources(query)
    strict = [each.name for each in query.sources if each not in letters]
    if len(strict) == len(query.sources):
        files = [sink.name for sink in query.sinks if sink.topic is None]
        if files:
            return Decision(
                "stops the query",
                (f"{files[0]} writes files, so nothing but its records can leave the query",),
                (f"write what {node.name} puts out to a topic, and go on from that in another flow",),
            )
        return Decision(
            "stops the query",
            (f"{', '.join(strict)} says on_error='fail'",),
            ("declare on_error='dead-letter' on the topic",),
        )
    names = ", ".join(f"{each.name}.dead-letter" for each in letters)
    but = (
        (f"records of {', '.join(strict)}, timers and windows stop it, as on_error='fail' says",)
        if strict
        else ()
    )
    undone = "" if isinstance(node, PythonOperator) else ", and what the call changed is undone"
    return Decision("dead letter", (f"{content} goes to {names}{undone}", *but))
