"""Joins of two streams that arrive as one, in which rows with an odd value are those of the right side."""

from typing import Any

import pyarrow as pa

from flowcore.joins.asof import AsOfJoin, AsOfJoinGroup
from flowcore.joins.group import JoinGroup
from flowcore.joins.interval import IntervalJoin, IntervalJoinGroup
from flowcore.joins.latest import LatestJoin, LatestJoinGroup
from flowcore.keyed.operator import StepOutputs

__all__ = ["SidedAsOf", "SidedInterval", "SidedLatest"]


class SidedGroup(JoinGroup[Any]):
    """Rows with an odd value are those of the right side."""

    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:
        odd = pa.array(rows.column("v").to_numpy() % 2 == 1)
        super().rows(rows.append_column("is_right", odd), out)


class SidedIntervalGroup(SidedGroup, IntervalJoinGroup):
    """An interval join of two streams that arrive as one."""


class SidedInterval(IntervalJoin):
    """Configuration."""

    def open(self) -> IntervalJoinGroup:
        return SidedIntervalGroup(self)


class SidedAsOfGroup(SidedGroup, AsOfJoinGroup):
    """An as-of join of two streams that arrive as one."""


class SidedAsOf(AsOfJoin):
    """Configuration."""

    def open(self) -> AsOfJoinGroup:
        return SidedAsOfGroup(self)


class SidedLatestGroup(SidedGroup, LatestJoinGroup):
    """A join with the newest row of two streams that arrive as one."""


class SidedLatest(LatestJoin):
    """Configuration."""

    def open(self) -> LatestJoinGroup:
        return SidedLatestGroup(self)
