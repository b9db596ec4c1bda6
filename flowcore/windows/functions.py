"""Window functions: what a window emits.

`WindowReduce` and `WindowAggregate` fold each record into one value, so that a window keeps one value for any
number of records. `WindowProcess` gets all records and the window. The first two may pass their result to a
process function, which then has the window's context at the cost of one value of state.
"""

from __future__ import annotations

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
    "outputs",
]


class AggregateFunction(Protocol):
    """Folds values into an accumulator, which has to be plain data: see `flowcore.keyed.plain`."""

    def create(self) -> Any:
        """An accumulator of nothing."""
        ...

    def add(self, accumulator: Any, value: Any, /) -> Any:
        """The accumulator with one more value; the one given may be changed and returned."""
        ...

    def merge(self, first: Any, second: Any, /) -> Any:
        """The accumulator of both; asked for only where windows merge."""
        ...

    def result(self, accumulator: Any, /) -> Any:
        """What is emitted; it must not be changed by later records."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowContext:
    """What a process function sees besides the values.

    Its own state is in two mappings that it changes in place; keys are text, values plain data.

    Attributes:
        key: The window's key; None where windows are not keyed.
        window: The window.
        watermark_ms: How far event time has come.
        clock_ms: The clock.
        firing: The how-many-th emission of the window this is, from 1.
        is_late: A record that came after the window was complete made it emit.
        is_backlog: What comes is history, not news.
        key_state: The function's own state of this key, shared by its windows. It stays until the
            function empties it.
        own: What `window_state` gives; None where windows merge.
    """

    key: Any
    window: TimeWindow
    watermark_ms: int
    clock_ms: int
    firing: int
    is_late: bool
    is_backlog: bool = False
    key_state: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] | None = None

    @property
    def window_state(self) -> dict[str, Any]:
        """The function's own state of this window; gone with the window.

        Raises:
            StateError: Windows merge, and nobody could say how their states do.
        """
        if self.own is None:
            msg = (
                f"window_state of {self.window} of key {self.key!r}: windows that merge have no state of "
                "their own, since it could not be merged; use key_state, or windows that do not merge"
            )
            raise StateError(msg)
        return self.own


class ProcessFunction(Protocol):
    """Makes any number of outputs from a window's values."""

    def process(self, context: WindowContext, values: Sequence[Any], /) -> Iterable[Any]:
        """The window emits: its values in order of arrival, or the one that they were folded into."""
        ...

    def clear(self, context: WindowContext, /) -> None:
        """The window ends; ``key_state`` can be tidied up."""
        ...


@dataclass(frozen=True, slots=True)
class PlainProcess:
    """A process function of a plain function, which has nothing to tidy up.

    Args:
        function: ``(context, values) -> outputs``.
    """

    function: Callable[[WindowContext, Sequence[Any]], Iterable[Any]]

    def process(self, context: WindowContext, values: Sequence[Any], /) -> Iterable[Any]:
        """Call it."""
        return self.function(context, values)

    def clear(self, context: WindowContext, /) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class WindowReduce:
    """Folds two values into one of the same kind.

    Args:
        function: Associative; values are given in order of arrival.
        then: Makes the outputs from the one value.
    """

    function: Callable[[Any, Any], Any]
    then: ProcessFunction | None = None


@dataclass(frozen=True, slots=True)
class WindowAggregate:
    """Folds values into an accumulator.

    Args:
        function: How.
        then: Makes the outputs from the one result.
    """

    function: AggregateFunction
    then: ProcessFunction | None = None


@dataclass(frozen=True, slots=True)
class WindowProcess:
    """Keeps every record until the window emits.

    Args:
        then: Makes the outputs.
    """

    then: ProcessFunction


WindowFunction = WindowReduce | WindowAggregate | WindowProcess


def outputs(function: WindowFunction, inputs: Sequence[Any], context: WindowContext) -> list[Any]:
    """What a window emits."""
    return list(inputs) if function.then is None else list(function.then.process(context, inputs))
