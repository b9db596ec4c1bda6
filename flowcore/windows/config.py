"""Configuration of a window operator."""

from dataclasses import dataclass
from typing import Literal, get_args

from flowcore.durations import show_ms
from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.errors import InvalidWindowError
from flowcore.windows import triggers
from flowcore.windows.arguments import require_object
from flowcore.windows.assigners import EndOfStreamWindows, GlobalWindows, WindowAssigner
from flowcore.windows.contents import Accumulating, Buffering, ContentLogic
from flowcore.windows.evictors import Evictor
from flowcore.windows.functions import WindowFunction, WindowProcess
from flowcore.windows.window import TimeWindow

__all__ = ["LateRecords", "WindowConfig", "WindowTime", "require_late"]

WindowTime = Literal["event", "processing"]
"""The time that assigns records to windows."""

LateRecords = Literal["drop", "side-output"]
"""What happens to a record that is too late for all its windows."""


def require_late(late: object, operator: str | None = None) -> None:
    """Check what is declared to happen to late records, by windows, a join or a sort.

    Raises:
        InvalidWindowError: It is not a choice.
    """
    if late not in get_args(LateRecords):
        where = "" if operator is None else f"operator {operator!r}: "
        msg = (
            f"{where}late={late!r} is not a choice: it would not be known what happens to late records; pass "
            "'drop' or 'side-output'"
        )
        raise InvalidWindowError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowConfig:
    """What a window operator does.

    Args:
        trigger: When a window emits; by default at its end. A global window has no end, so without a trigger
            it emits nothing.
        evictor: The records to keep when a window emits; all records are kept until then.
        allowed_lateness_ms: How long after its end a window takes late records. Each of them makes it emit
            again.
        late: What happens to later records.
        ttl_ms: Global windows only: how long after its last record, in processing time, a key is kept. Its
            next record begins a new window. None for ever.
        newest_timestamp: Global windows only: a result has the timestamp of the newest record of its window,
            as it has with a time to live, and not the end of time.

    Raises:
        InvalidWindowError: The parameters contradict each other.
    """

    assigner: WindowAssigner
    function: WindowFunction
    time: WindowTime = "event"
    trigger: triggers.Trigger | None = None
    evictor: Evictor | None = None
    allowed_lateness_ms: int = 0
    late: LateRecords = "drop"
    ttl_ms: int | None = None
    newest_timestamp: bool = False

    def __post_init__(self) -> None:
        if self.time not in ("event", "processing"):
            msg = f"time={self.time!r} is not a choice: pass 'event' or 'processing'"
            raise InvalidWindowError(msg)
        require_late(self.late)
        if self.allowed_lateness_ms < 0:
            msg = (
                f"allowed_lateness={show_ms(self.allowed_lateness_ms)} is negative: windows would be deleted "
                "before they are complete; pass zero or more"
            )
            raise InvalidWindowError(msg)
        if self.ttl_ms is not None and type(self.assigner) is not GlobalWindows:
            msg = (
                f"ttl={show_ms(self.ttl_ms)} with {self.assigner!r}: these windows are removed at their end, "
                "and records would be lost before it; leave ttl out, or use global windows"
            )
            raise InvalidWindowError(msg)
        if self.ttl_ms is not None and self.ttl_ms < 1:
            msg = f"ttl={show_ms(self.ttl_ms)} is not positive: no record would be kept; pass one or more"
            raise InvalidWindowError(msg)
        if self.trigger is not None:
            triggers.require_trigger("trigger", self.trigger)
        if self.evictor is not None:
            require_object("evictor", self.evictor, ("keep",), "CountEvictor(100)")
        if self.assigner.merging and not triggers.is_mergeable(self.effective_trigger):
            msg = (
                f"{self.effective_trigger!r} with {self.assigner!r}: the trigger cannot continue when "
                "windows merge; use another trigger, or windows that do not merge; one of your own says "
                "mergeable = True and has on_merge, if it can"
            )
            raise InvalidWindowError(msg)

    @property
    def effective_trigger(self) -> triggers.Trigger:
        """The trigger, or the default of the assigner."""
        if self.trigger is not None:
            return self.trigger
        if isinstance(self.assigner, EndOfStreamWindows):
            return triggers.EndOfStreamTrigger()
        if not self.assigner.bounded:
            return triggers.Never()
        return triggers.EventTimeTrigger() if self.time == "event" else triggers.ProcessingTimeTrigger()

    @property
    def content_logic(self) -> ContentLogic:
        """An accumulator per window where that is enough; otherwise its records."""
        if self.evictor is not None or isinstance(self.function, WindowProcess):
            return Buffering(self.function)
        return Accumulating(self.function)

    @property
    def has_lateness(self) -> bool:
        """Windows and records can be late."""
        return self.time == "event" and self.assigner.bounded

    def end_ms(self, window: TimeWindow) -> int | None:
        """Return the event or processing time at which a window is deleted; None for never."""
        if not self.assigner.bounded:
            return None
        if self.time == "processing":  # a window that has fired takes more records in its last millisecond
            return min(window.last_ms + 1, MAX_TIMESTAMP_MS)
        return self.after_lateness_ms(window.last_ms)

    def ended_ms(self, watermark_ms: int) -> int:
        """Return the time up to which windows have ended at a watermark; it may be below all times."""
        if watermark_ms == MAX_TIMESTAMP_MS:
            return MAX_TIMESTAMP_MS
        return watermark_ms - self.allowed_lateness_ms

    def after_lateness_ms(self, time_ms: int) -> int:
        """Return a time plus the allowed lateness, at most the end of time."""
        return min(time_ms + self.allowed_lateness_ms, MAX_TIMESTAMP_MS)
