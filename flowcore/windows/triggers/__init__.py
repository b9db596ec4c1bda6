"""Triggers: when a window emits; see `flowcore.windows.triggers.trigger` for one of your own."""

from __future__ import annotations

from flowcore.windows.triggers.at_end import EndOfStreamTrigger, EventTimeTrigger, ProcessingTimeTrigger
from flowcore.windows.triggers.continuous import ContinuousEventTime, ContinuousProcessingTime
from flowcore.windows.triggers.count import Count
from flowcore.windows.triggers.delta import Delta
from flowcore.windows.triggers.purging import Purging
from flowcore.windows.triggers.silent import Never
from flowcore.windows.triggers.trigger import Trigger, TriggerContext, TriggerResult

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
