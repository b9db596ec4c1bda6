"""The operator that assigns event time in the middle of a flow."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from flowcore.api.decisions import Decision, Obstacle
from flowcore.api.expressions import Expression
from flowcore.api.node import Operator
from flowcore.watermarks.strategies import WatermarkStrategy

__all__ = ["WithEventTime", "emitted_by_watermark", "find_timed"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WithEventTime(Operator):
    """Each record gets its timestamp from an expression, and watermarks are made of these timestamps.

    Timestamps and watermarks from upstream end here, except for the end of input.

    Attributes:
        event_time: The timestamp: BIGINT milliseconds or TIMESTAMP.
        strategy: Makes the watermarks of each partition of the source.
        generator: The expression of the strategy, if it has one.
    """

    is_row_wise: ClassVar[bool] = True

    event_time: Expression
    strategy: WatermarkStrategy
    generator: Expression | None = None

    @property
    def watermark(self) -> WatermarkStrategy:
        return self.strategy

    def describe(self) -> str:
        return f"event time {self.event_time.text}, {self.strategy}"

    def reads(self, used: Collection[str]) -> Collection[str]:
        generator = self.generator.columns if self.generator is not None else ()
        return {*used, *self.event_time.columns, *generator}

    def types(self) -> Mapping[str, str]:
        return self.passed_types(self.columns)

    def realtime_obstacles(self) -> Iterator[Obstacle]:
        yield Obstacle(
            f"{self.name} makes watermarks, which leave between two batches",
            f"leave out {self.name}, if nothing reads its timestamps",
        )

    @property
    def emits_without_input(self) -> bool:
        return self.strategy.idle_after_ms is not None


def find_timed(node: Operator) -> tuple[Operator, ...]:
    """An operator and the operators upstream from which its records have their timestamps, inputs first."""
    found = [node]
    for each in found:
        if not isinstance(each, WithEventTime):
            found += (parent for parent in each.inputs if parent not in found)
    return tuple(each for each in node.upstream if each in found)


def emitted_by_watermark(node: Operator, when: str, why: str) -> Decision:
    """When an operator emits records that wait for the watermark, and the sources that may hold them."""
    silent = [
        each.name
        for each in find_timed(node)
        if not each.bounded and each.watermark and each.watermark.idle_after_ms is None
    ]
    names = " and ".join(silent)
    holds = (f"a partition of {names} without records holds them",) if silent else ()
    change = (f"give the watermark of {names} .with_idleness(...)",) if silent else ()
    return Decision(when, (why, *holds), change)
