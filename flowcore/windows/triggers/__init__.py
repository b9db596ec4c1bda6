"""Triggers: when a window emits. Implement `Trigger` for one of your own."""

from __future__ import annotations

from flowcore.windows.triggers.by_time import (
    ContinuousEventTime,
    ContinuousProcessingTime,
    EndOfStreamTrigger,
    EventTimeTrigger,
    ProcessingTimeTrigger,
)
from flowcore.windows.triggers.trigger import (
    Count,
    Delta,
    Never,
    Purging,
    Trigger,
    TriggerContext,
    TriggerResult,
)

__all__ = [
    "ContinuousEventTime",
    "ContinuousProcessingTime",
    "Count",
    "Delta",
    "EndOfStreamTrigger",
    "EventTimeTrigger",
    "Never",
    "ProcessingTimeTrigger",
    "Purging",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
]
