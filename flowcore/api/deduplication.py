"""Deduplication: of records with equal keys that are close in time, only the first passes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from flowcore.api.decisions import Decision, Obstacle
from flowcore.api.expressions import Expression
from flowcore.api.node import Operator
from flowcore.api.stateful import StatefulOperator
from flowcore.durations import show_ms

__all__ = ["Deduplicate"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Deduplicate(StatefulOperator):
    """The first record of each key, and those that are far enough from all that passed before.

    Attributes:
        within_ms: How far apart the timestamps of repeats are at most, exclusive; None for any distance.
        time: The time of the timestamps; ``"processing"`` if there is no limit.
        pass_null_keys: Records without key pass, and are counted.
    """

    state_kind: ClassVar[str] = "deduplicate"

    by: tuple[str, ...]
    within_ms: int | None
    time: Literal["event", "processing"]
    timestamp: Expression | None = None
    uses: tuple[str, ...] = ()
    pass_null_keys: bool = False

    def own_attributes(self) -> Mapping[str, bool]:
        return Operator.own_attributes(self)

    def describe(self) -> str:
        return f"deduplicate by {', '.join(self.by)}, {self._limit()}"

    def reads(self, used: Collection[str]) -> Collection[str]:
        return {*used, *StatefulOperator.reads(self, used)}

    def types(self) -> Mapping[str, str]:
        return self.passed_types(self.columns)

    def state_values(self) -> str:
        return f"what passed at which {self.time} time"

    def unbounded_state(self) -> Decision | None:
        if self.bounded or self.within_ms is not None:
            return None
        change = f"declare within= a time after which a repeat of {', '.join(self.by)} need not be found"
        return Decision("unbounded", ("within=None keeps every key for ever",), (change,))

    def compiled(self) -> Decision:
        """``"native"``: a window function of Spark. ``"key-group"``: Python over columns, with state."""
        if self.bounded and self.within_ms is None:
            return Decision("native", ("only the first record of each key passes, and Spark can order them",))
        why = "a record is compared with those of its key that passed before"
        return Decision("key-group", (why, self._retention()))

    def flush_obstacle(self) -> Obstacle | None:
        return Operator.flush_obstacle(self)

    def checkpoint_obstacle(self) -> Obstacle | None:
        return None

    @property
    def needs_timestamps(self) -> bool:
        return not self.bounded and self.time == "event"

    def _limit(self) -> str:
        if self.within_ms is None:
            return "the first of each key"
        within = show_ms(self.within_ms)
        return f"the first within {within} of {self.time} time"

    def _retention(self) -> str:
        if self.within_ms is None:
            return "it keeps each key for ever"
        once, twice = (show_ms(n * self.within_ms) for n in (1, 2))
        until = "the watermark has" if self.time == "event" else "processing time has"
        return f"it keeps each key until {until} advanced by {once} to {twice}"
