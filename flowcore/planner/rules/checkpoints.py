"""Checkpoints: when does a live query take one, and is anything flushed for it?

A buffer or an operator that puts something out only because a checkpoint is taken costs output that
nobody needs. Nothing is flushed where no operator asks for it.
"""

from __future__ import annotations

from flowcore.api.decisions import Decision
from flowcore.durations import show_duration
from flowcore.planner.model import LiveQuery
from flowcore.settings import Settings

__all__ = ["decide_checkpoint"]


def decide_checkpoint(query: LiveQuery, settings: Settings) -> Decision:
    """When a live query takes a checkpoint, and who flushes before it."""
    asking = [node.name for node in query.operators if node.attributes().output_on_checkpoint]
    flushed = [f"{name} puts out what it holds before it (output_on_checkpoint)" for name in asking] or [
        "nothing is flushed before it, as no operator declares output_on_checkpoint"
    ]
    if query.mode.value == "realtime":
        interval = show_duration(settings.realtime_batch)
        when = f"every {interval}", f"execution.realtime.batch-duration is {interval}"
    else:
        when = "after each batch", f"{query.mode.value} takes one with each batch"
    return Decision(when[0], (when[1], *flushed))
