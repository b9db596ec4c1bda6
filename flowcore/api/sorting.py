"""Sorting by event time, within the watermark."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from flowcore.api.decisions import Decision, Obstacle
from flowcore.api.event_time_operator import emitted_by_watermark
from flowcore.api.expressions import Expression
from flowcore.api.node import Operator
from flowcore.api.schema import Schema
from flowcore.api.stateful import LATE_OUTPUT, StatefulOperator, late_outcome
from flowcore.windows.config import LateRecords

__all__ = ["EventTimeSort"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class EventTimeSort(StatefulOperator):
    """The records of each key in order of their timestamps; without key, those of each channel.

    Attributes:
        late: What becomes of late records.
    """

    state_kind: ClassVar[str] = "sort"
    without_key: ClassVar[str] = "it has no key, so that a partition is one"

    by: tuple[str, ...]
    late: LateRecords
    timestamp: Expression | None = None
    uses: tuple[str, ...] = ()

    def own_attributes(self) -> Mapping[str, bool]:
        return Operator.own_attributes(self)

    def describe(self) -> str:
        late = ", late records to a side output" if self.late == "side-output" else ""
        return f"sort by event time {self._scope()}{late}"

    def reads(self, used: Collection[str]) -> Collection[str]:
        return {*used, *self.by}

    def types(self) -> Mapping[str, str]:
        return self.passed_types(self.columns)

    def state_values(self) -> str:
        return "records that wait for the watermark"

    def stored_columns(self, used: Collection[str]) -> tuple[str, ...]:
        return tuple(name for name in self.columns if name.lower() in used)

    def compiled(self) -> Decision:
        return Decision("key-group", (f"records {self._scope()} wait for earlier ones, in state",))

    def own_emission(self) -> Decision:
        why = "no earlier record can come after that"
        return emitted_by_watermark(self, "when the watermark reaches a record", why)

    def late_records(self) -> Decision:
        return late_outcome(self.late, "side output")

    def flush_obstacle(self) -> Obstacle | None:
        return Operator.flush_obstacle(self)

    def checkpoint_obstacle(self) -> Obstacle:
        return Obstacle("the watermark decides when it emits")

    def side_outputs_by_name(self) -> Mapping[str, tuple[tuple[str, ...], Schema | None]]:
        return {LATE_OUTPUT: (self.inputs[0].columns, None)} if self.late == "side-output" else {}

    @property
    def needs_timestamps(self) -> bool:
        return True

    def _scope(self) -> str:
        return f"by {', '.join(self.by)}" if self.by else "in each partition"
