"""Failures: what becomes of a record for which a user's function fails?

It goes where the unreadable messages of its source go, with its bytes, and the query goes on; unless the
source asks to stop, or the record cannot leave the query as it came.
"""

from __future__ import annotations

from flowcore.graph.operators import MapBatches, Operator, PythonOperator, Read, topic_of, upstream
from flowcore.planner.plan import BoundedStage, Decision, LiveQuery

__all__ = ["failure_of"]


def failure_of(node: Operator, runs: BoundedStage | LiveQuery) -> Decision | None:
    """``"dead letter"``, or that it stops what runs it; None for what is no Python function."""
    if not isinstance(node, PythonOperator):
        return None
    if isinstance(runs, BoundedStage):
        return Decision("stops the stage", ("a result is complete, or it is none",))
    batched = [each.name for each in upstream(node) if isinstance(each, MapBatches) and not each.bounded]
    if batched:
        return Decision(
            "stops the query",
            (f"{batched[0]} is given batches, so nobody can tell for which record it failed",),
            (f"use map or flat_map instead of {batched[0]}",),
        )
    sources = [each for each in upstream(node) if isinstance(each, Read) and not each.bounded]
    strict = [each.name for each in sources if (topic := topic_of(each)) and topic.on_error == "fail"]
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
