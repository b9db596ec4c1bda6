"""Opening: which states does a function have?"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, NoReturn

from flowcore.durations import MILLISECOND
from flowcore.errors import StateError
from flowcore.process.current import Current
from flowcore.process.states import (
    AggregatingState,
    Declaration,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from flowcore.process.types import StateType
from flowcore.windows.functions import AggregateFunction

__all__ = ["LivesFrom", "OpenContext"]

LivesFrom = Literal["write", "read"]
"""From when on an entry lives: from when it was written, or also from when it was read last."""


class OpenContext:
    """What a function is given in ``open``: it declares its states, and keeps what it gets back.

    A state has a name, by which it is found again after a restart, and a type as Spark DDL. With ``ttl``
    an entry is forgotten that much later by the clock; ``lives_from="read"`` counts reading too.

    Attributes:
        declared: The states by name.
    """

    def __init__(self, current: Current) -> None:
        self.declared: dict[str, Declaration] = {}
        self._current = current
        self._open = True

    def value_state(
        self, name: str, value_type: str, *, ttl: timedelta | None = None, lives_from: LivesFrom = "write"
    ) -> ValueState:
        """One value a key.

        Raises:
            StateError: It is too late to declare one, or the name is taken.
            SchemaError: The type is none.
        """
        return ValueState(self._declared("value", name, (value_type,), ttl, lives_from), self._current)

    def list_state(
        self, name: str, value_type: str, *, ttl: timedelta | None = None, lives_from: LivesFrom = "write"
    ) -> ListState:
        """Values in order; ``value_type`` is that of one of them."""
        return ListState(self._declared("list", name, (value_type,), ttl, lives_from), self._current)

    def map_state(
        self,
        name: str,
        key_type: str,
        value_type: str,
        *,
        ttl: timedelta | None = None,
        lives_from: LivesFrom = "write",
    ) -> MapState:
        """Values by key."""
        return MapState(self._declared("map", name, (key_type, value_type), ttl, lives_from), self._current)

    def reducing_state(
        self,
        name: str,
        value_type: str,
        function: Callable[[Any, Any], Any],
        *,
        ttl: timedelta | None = None,
        lives_from: LivesFrom = "write",
    ) -> ReducingState:
        """One value, into which ``function(kept, new)`` folds others."""
        found = self._declared("reducing", name, (value_type,), ttl, lives_from)
        return ReducingState(found, self._current, function)

    def aggregating_state(
        self,
        name: str,
        function: AggregateFunction,
        *,
        ttl: timedelta | None = None,
        lives_from: LivesFrom = "write",
    ) -> AggregatingState:
        """The accumulator of an aggregate function; it is plain data."""
        found = self._declared("aggregating", name, (), ttl, lives_from)
        return AggregatingState(found, self._current, function)

    def close(self) -> None:
        """No more states from now on."""
        self._open = False

    def _declared(
        self, kind: str, name: str, types: tuple[str, ...], ttl: timedelta | None, lives_from: LivesFrom
    ) -> Declaration:
        what = f"{kind} state {name!r}"
        if not self._open:
            _refuse(
                f"{what} is declared after open(): what a restart finds of it could not be given back; "
                "declare all states in open(), and keep them in self"
            )
        if name in self.declared:
            _refuse(f"{what} is declared twice: one would overwrite the other; give it another name")
        if lives_from not in ("write", "read"):
            _refuse(f"{what}: lives_from={lives_from!r} is neither of two: pass 'write' or 'read'")
        if ttl is not None and (not isinstance(ttl, timedelta) or ttl < MILLISECOND or ttl % MILLISECOND):
            _refuse(
                f"{what}: ttl={ttl!r} is no length of whole milliseconds above zero: it would be gone at "
                "once, or never; pass for instance timedelta(hours=1)"
            )
        reads_count = lives_from == "read" and ttl is not None
        ttl_ms = None if ttl is None else ttl // MILLISECOND
        found = Declaration(kind, name, tuple(map(StateType.parse, types)), ttl_ms, reads_count)
        self.declared[name] = found
        return found


def _refuse(msg: str) -> NoReturn:
    raise StateError(msg)
