"""Declaration of the states of a process function."""

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

__all__ = ["OpenContext", "TtlUpdate"]

TtlUpdate = Literal["write", "read"]
"""When the time to live of an entry begins: at its last write, or at its last write or read."""


class OpenContext:
    """Passed to ``open`` of a function, which declares its states and keeps the returned objects.

    A state is identified by its name over restarts, and has a type as Spark DDL. An entry expires in
    processing time when it is older than ``ttl``; with ``ttl_update="read"`` reading renews it.
    """

    def __init__(self, current: Current) -> None:
        self.declared: dict[str, Declaration] = {}
        self._current = current
        self._open = True

    def value_state(
        self, name: str, value_type: str, *, ttl: timedelta | None = None, ttl_update: TtlUpdate = "write"
    ) -> ValueState:
        """One value for each key.

        Raises:
            StateError: ``open`` has returned, the name is taken, or a setting is invalid.
            SchemaError: The type is not valid for a state.
        """
        return ValueState(self._declare("value", name, (value_type,), ttl, ttl_update), self._current)

    def list_state(
        self, name: str, value_type: str, *, ttl: timedelta | None = None, ttl_update: TtlUpdate = "write"
    ) -> ListState:
        """A list of values of ``value_type``."""
        return ListState(self._declare("list", name, (value_type,), ttl, ttl_update), self._current)

    def map_state(
        self,
        name: str,
        key_type: str,
        value_type: str,
        *,
        ttl: timedelta | None = None,
        ttl_update: TtlUpdate = "write",
    ) -> MapState:
        """Values by key."""
        return MapState(self._declare("map", name, (key_type, value_type), ttl, ttl_update), self._current)

    def reducing_state(
        self,
        name: str,
        value_type: str,
        function: Callable[[Any, Any], Any],
        *,
        ttl: timedelta | None = None,
        ttl_update: TtlUpdate = "write",
    ) -> ReducingState:
        """One value, to which ``function(current, new)`` adds others."""
        found = self._declare("reducing", name, (value_type,), ttl, ttl_update)
        return ReducingState(found, self._current, function)

    def aggregating_state(
        self,
        name: str,
        function: AggregateFunction,
        *,
        ttl: timedelta | None = None,
        ttl_update: TtlUpdate = "write",
    ) -> AggregatingState:
        """The accumulator of an aggregate function; it must be plain data."""
        found = self._declare("aggregating", name, (), ttl, ttl_update)
        return AggregatingState(found, self._current, function)

    def close(self) -> None:
        """Allow no more declarations."""
        self._open = False

    def _declare(
        self, kind: str, name: str, types: tuple[str, ...], ttl: timedelta | None, ttl_update: TtlUpdate
    ) -> Declaration:
        what = f"{kind} state {name!r}"
        if not self._open:
            _refuse(
                f"{what} is declared after open(): it could not be restored after a restart; declare "
                "all states in open(), and keep them in self"
            )
        if name in self.declared:
            _refuse(f"{what} is declared twice: one would overwrite the other; use another name")
        if ttl_update not in ("write", "read"):
            _refuse(f"{what}: ttl_update={ttl_update!r} is unknown; pass 'write' or 'read'")
        if ttl is not None and (not isinstance(ttl, timedelta) or ttl < MILLISECOND or ttl % MILLISECOND):
            _refuse(
                f"{what}: ttl={ttl!r} is not a positive number of whole milliseconds: entries would expire "
                "at once, or never; pass for instance timedelta(hours=1)"
            )
        reads_count = ttl_update == "read" and ttl is not None
        ttl_ms = None if ttl is None else ttl // MILLISECOND
        found = Declaration(kind, name, tuple(map(StateType.parse, types)), ttl_ms, reads_count)
        self.declared[name] = found
        return found


def _refuse(msg: str) -> NoReturn:
    raise StateError(msg)
