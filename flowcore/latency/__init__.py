"""End-to-end latency of records from a source to a sink, measured by latency markers beside the records."""

from __future__ import annotations

from flowcore.latency.histogram import LatencySummary
from flowcore.latency.tracker import OTHER, LatencyTracker

__all__ = ["OTHER", "LatencySummary", "LatencyTracker"]
