"""When a live query takes a checkpoint, and which operators are flushed for it.

Nothing is flushed where no operator asks for it, since a flush costs output that nothing else needs.
"""

from flowcore.api.decisions import Decision
from flowcore.durations import show_duration
from flowcore.planner.model import LiveQuery
from flowcore.settings import Settings

__all__ = ["decide_checkpoint"]


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
