"""Forms: what do windows and keyed processes compile to, and what do they keep?

*Key-group*: Python over whole columns, with state and watermarks by key group; it has the whole of the
semantics. *Native*: Spark's own window aggregate, where the result is the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowcore.api.stateful import KeyedProcess, Window
from flowcore.planner.model import BoundedStage, Decision, LiveQuery
from flowcore.windows import EndOfStreamWindows, SlidingWindows, TumblingWindows

__all__ = ["form_of", "late_of", "output_of", "state_of"]

_IN_ORDER = frozenset({"first_value", "last_value", "collect_list"})


def form_of(node: Window | KeyedProcess) -> Decision:
    """``"native"`` or ``"key-group"``."""
    if isinstance(node, KeyedProcess):
        return Decision("key-group", ("a Python function keeps state and timers for each key",))
    found = tuple(_obstacles(node))
    if found:
        change = tuple(dict.fromkeys(what for _, what in found if what))
        return Decision("key-group", tuple(why for why, _ in found), change)
    return Decision(
        "native", ("every window is complete when its input has ended: Spark's own aggregate gives the same",)
    )


def state_of(node: Window | KeyedProcess, runs: BoundedStage | LiveQuery) -> Decision | None:
    """What it keeps over batches, None if it is batch itself."""
    if isinstance(runs, BoundedStage):
        return None
    groups = f"{runs.key_groups} key group{'s' * (runs.key_groups != 1)}"
    why = f"state.key-groups is {runs.key_groups}, and its checkpoint keeps to the number it was born with"
    keys = () if node.by else ("it has no key, so that one of them has everything",)
    return Decision(groups, (why, *keys))


def late_of(node: Window) -> Decision | None:
    """What becomes of late records, None where none are late."""
    if node.bounded or not node.config.has_lateness:
        return None
    if node.config.late == "side-output":
        return Decision("side output", ("late='side-output' is declared",))
    return Decision("dropped and counted", ("no side output is declared",), ("declare late='side-output'",))


def output_of(node: Window | KeyedProcess) -> Decision:
    """When it puts out."""
    if isinstance(node, KeyedProcess):
        if node.bounded:
            why = "its function sees the rows in order of time, and event time goes on when they have ended"
            return Decision("as rows come and, at their end, timers are due", (why,))
        return Decision("as input comes and timers are due", ("its function decides",))
    if node.bounded:
        return Decision("at the end of input", ("its windows are complete when their input has ended",))
    if node.config.trigger is not None:
        return Decision("when its trigger says so", ("it has a trigger",))
    of_time = "the watermark reaches" if node.config.time == "event" else "the clock reaches"
    return Decision("when a window is complete", (f"{of_time} the last millisecond of the window",))


def _obstacles(node: Window) -> Iterator[tuple[str, str]]:
    """What Spark's window aggregate cannot do, and how to do without it."""
    config = node.config
    if not node.bounded:
        if config.time == "event":
            yield "its watermark is the smallest over all partitions, Spark's own the largest", ""
        else:
            yield "Spark's own aggregate has no windows by the clock", ""
        return
    if not isinstance(config.assigner, (TumblingWindows, SlidingWindows, EndOfStreamWindows)):
        yield "its windows are not of a fixed length", ""
    if not node.built_in or config.function.then is not None:
        yield "it has a Python function", "use aggregates that are built in"
    if config.trigger is not None:
        yield "it has a trigger", "leave the trigger out"
    if config.evictor is not None:
        yield "it has an evictor", "leave the evictor out"
    ordered = [name for name, each in node.built_in if each.function in _IN_ORDER]
    if ordered and node.timestamp is not None:
        yield f"{', '.join(ordered)} go by the order of time, which Spark's aggregate does not keep", ""
