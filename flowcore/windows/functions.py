"""Window functions: what a window emits.

`WindowReduce` and `WindowAggregate` fold each record into one value, so that a window keeps one value for any
number of records. `WindowProcess` gets all records and the window. The first two may pass their result to a
process function, which then has the window's context at the cost of one value of state.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flowcore.errors import StateError
from flowcore.windows.window import TimeWindow

__all__ = [
    "AggregateFunction",
    "PlainProcess",
    "ProcessFunction",
    "WindowAggregate",
    "WindowContext",
    "WindowFunction",
    "WindowProcess",
    "WindowReduce",
]


class AggregateFunction(Protocol):
    """Folds values into an accumulator of plain data; see `flowcore.keyed.plain`."""

    def create(self) -> Any:
        """Return an empty accumulator."""

    def add(self, accumulator: Any, value: Any, /) -> Any:
        """Return the accumulator with one more value; it may change the given one."""

    def merge(self, first: Any, second: Any, /) -> Any:
        """Return the accumulator of both; called only if windows merge."""

    def result(self, accumulator: Any, /) -> Any:
        """Return the result, which later records must not change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowContext:
    """What a process function gets besides the values.

    Its state is in two mappings from text to plain data, which it changes in place.

    Attributes:
        key: The window's key; None where windows are not keyed.
        firing: 1-based number of this firing of the window.
        is_late: A record that arrived after the window was complete made it emit.
        key_state: The function's state of this key, shared by its windows. It is kept until the function
            empties it.
        own: The value of `window_state`; None where windows merge.
    """

    key: Any
    window: TimeWindow
    watermark_ms: int
    processing_time_ms: int
    firing: int
    is_late: bool
    is_backlog: bool = False
    key_state: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] | None = None

    @property
    def window_state(self) -> dict[str, Any]:
        """The function's state of this window, deleted with the window.

        Raises:
            StateError: Windows merge, and their states cannot be merged.
        """
        if self.own is None:
            msg = (
                f"window_state of {self.window} of key {self.key!r}: windows that merge have no state of "
                "their own, since it could not be merged; use key_state, or windows that do not merge"
            )
            raise StateError(msg)
        return self.own


class ProcessFunction(Protocol):
    """Computes the outputs of a window from its values."""

    def process(self, context: WindowContext, values: Sequence[Any], /) -> Iterable[Any]:
        """Return the outputs of a firing.

        Args:
            values: Its values in order of arrival, those of merged sessions one session after the other; or
                the one value that they were folded into.
        """

    def clear(self, context: WindowContext, /) -> None:
        """Clean up ``key_state`` when the window is deleted."""


@dataclass(frozen=True, slots=True)
class PlainProcess:
    """A process function without state, from a plain function ``(context, values) -> outputs``."""

    function: Callable[[WindowContext, Sequence[Any]], Iterable[Any]]

    def process(self, context: WindowContext, values: Sequence[Any], /) -> Iterable[Any]:
        return self.function(context, values)

    def clear(self, context: WindowContext, /) -> None:
        pass


@dataclass(frozen=True, slots=True)
class WindowReduce:
    """Folds two values into one of the same type.

    Args:
        function: Associative; it gets values in order of arrival.
        then: Computes the outputs from the one value.
    """

    function: Callable[[Any, Any], Any]
    then: ProcessFunction | None = None


@dataclass(frozen=True, slots=True)
class WindowAggregate:
    """Folds values into an accumulator; ``then`` computes the outputs from its result."""

    function: AggregateFunction
    then: ProcessFunction | None = None


@dataclass(frozen=True, slots=True)
class WindowProcess:
    """Keeps every record until the window emits."""

    then: ProcessFunction


WindowFunction = WindowReduce | WindowAggregate | WindowProcess
