"""After which bounded stages a live query starts.

After all of them, unless ``execution.hand-over`` is ``pipelined`` (FLIP-331's future work): then it starts
when the results that it joins are committed, while other stages still run. A part of a table is never read: a
record that is joined before its partner exists would be emitted without it, and nothing would correct that.
"""

from dataclasses import replace

from flowcore.api.decisions import Decision
from flowcore.planner.model import BoundedStage, LiveQuery
from flowcore.settings import Settings

__all__ = ["set_start"]


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
        reasons, change = ("execution.hand-over is whole",), ("set execution.hand-over to pipelined",)
    elif settings.latency_interval:
        reasons = ("the latency markers of a source are for all of its queries, so these start together",)
        change = ("set metrics.latency.interval to 0",)
    else:
        after, reasons = joined, ("execution.hand-over is pipelined", f"it joins nothing of {others}")
    when = f"when {', '.join(after)} {'are' if len(after) > 1 else 'is'} committed" if after else "at once"
    return replace(query, after=after, start=Decision(when, reasons, change))
