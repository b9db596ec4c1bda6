"""Triggers: when a window emits; see `flowcore.windows.triggers.trigger` for one of your own."""

from __future__ import annotations

from flowcore.windows.triggers.at_end import EndOfStream, EventTime, ProcessingTime
from flowcore.windows.triggers.continuous import ContinuousEventTime, ContinuousProcessingTime
from flowcore.windows.triggers.count import Count
from flowcore.windows.triggers.delta import Delta
from flowcore.windows.triggers.purging import Purging
from flowcore.windows.triggers.silent import Never
from flowcore.windows.triggers.trigger import Trigger, TriggerContext, Verdict

__all__ = [
    "ContinuousEventTime",
    "ContinuousProcessingTime",
    "Count",
    "Delta",
    "EndOfStream",
    "EventTime",
    "Never",
    "ProcessingTime",
    "Purging",
    "Trigger",
    "TriggerContext",
    "Verdict",
]
