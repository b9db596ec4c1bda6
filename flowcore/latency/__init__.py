"""Latency: how long do records take from a source to a sink, as markers that travel beside them tell?"""

from __future__ import annotations

from flowcore.latency.summary import LatencySummary
from flowcore.latency.tracker import OTHER, LatencyTracker

__all__ = ["OTHER", "LatencySummary", "LatencyTracker"]
