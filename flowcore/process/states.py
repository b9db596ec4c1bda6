"""States: objects with which a function reads and writes the state of the current key.

A state is declared once and serves all keys. With a time to live, each entry of a value, list or map expires
on its own, in processing time.
"""

import math
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

from flowcore.keyed.plain import NAN
from flowcore.process.current import Current
from flowcore.process.state import Cell, Entry
from flowcore.process.types import StateType
from flowcore.windows.functions import AggregateFunction

__all__ = ["AggregatingState", "Declaration", "ListState", "MapState", "ReducingState", "ValueState"]


@dataclass(frozen=True, slots=True)
class Declaration:
    """The declaration of a state.

    Attributes:
        kind: ``"value"``, ``"list"``, ``"map"``, ``"reducing"`` or ``"aggregating"``.
        name: Unique in its function.
        types: The types of its values; a map has two.
        ttl_ms: Time to live of an entry, None for ever.
        reads_count: Reading an entry renews its time to live.
    """

    kind: str
    name: str
    types: tuple[StateType, ...]
    ttl_ms: int | None = None
    reads_count: bool = False

    @property
    def layout(self) -> str:
        """The layout of its entries; entries with another layout cannot be restored."""
        ttl = () if self.ttl_ms is None else ("with ttl",)
        return " ".join((self.kind, *(each.text for each in self.types), *ttl))


class _State:
    """A cell, whose entries may expire."""

    def __init__(self, declaration: Declaration, current: Current) -> None:
        self.declaration = declaration
        self._current = current

    def clear(self) -> None:
        """Remove all values of this key."""
        state, key, name = self._current.state, self._current.key, self.declaration.name
        if self._current.undo is not None:
            self._current.undo.save_cell(key, name)
        cells = state.cells.get(key, {})
        if cells.pop(name, None) is None:
            return
        if not cells:
            del state.cells[key]
        state.expiries.discard_all((key, name))

    def _cell(self) -> Cell:
        """The entries, which must not be changed."""
        if self._current.undo is not None:
            self._current.undo.save_cell(self._current.key, self.declaration.name)
        return self._current.state.cells.get(self._current.key, {}).get(self.declaration.name, {})

    def _kept(self, entry: Any) -> Entry | None:
        """An entry whose value is handed out."""
        if self._current.undo is not None:
            self._current.undo.save_value(self._current.key, self.declaration.name, entry)
        return self._cell().get(entry)

    def _read(self, entry: Any) -> Any:
        found = self._kept(entry)
        if found is None:
            return None
        if self.declaration.reads_count:
            self._write(entry, found.value)
        return found.value

    def _write(self, entry: Any, value: Any) -> None:
        state, key, ttl_ms = self._current.state, self._current.key, self.declaration.ttl_ms
        if self._current.undo is not None:
            self._current.undo.save_cell(key, self.declaration.name)
        cell = state.cells.setdefault(key, {}).setdefault(self.declaration.name, {})
        if ttl_ms is None:
            cell[entry] = Entry(value, 0)
            return
        cell.pop(entry, None)  # entries are in order of expiry
        cell[entry] = Entry(value, state.processing_time_ms)
        owner = (key, self.declaration.name)
        if not state.expiries.times_of(owner):
            state.expiries.add(owner, state.processing_time_ms + ttl_ms)


class _OneValue(_State):
    def get(self, default: Any = None) -> Any:
        """The value, or the default if there is none."""
        found = self._read(None)
        return default if found is None else found


class ValueState(_OneValue):
    """One value."""

    def set(self, value: Any) -> None:
        """Replace the value; None removes it.

        Raises:
            StateError: The value does not have the declared type.
        """
        if value is None:
            self.clear()
            return
        self.declaration.types[0].require(self.declaration.name, value)
        self._write(None, value)


class ListState(_State):
    """Values, in the order in which they were added."""

    def add(self, value: Any) -> None:
        """Append a value.

        Raises:
            StateError: The value does not have the declared type.
        """
        self.declaration.types[0].require(self.declaration.name, value)
        cell = self._cell()
        self._write(next(reversed(cell)) + 1 if cell else 0, value)

    def set(self, values: Iterable[Any]) -> None:
        """Replace all values."""
        values = tuple(values)
        self.clear()
        for value in values:
            self.add(value)

    def get(self) -> list[Any]:
        """All values."""
        return [self._read(entry) for entry in tuple(self._cell())]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def __len__(self) -> int:
        return len(self._cell())


class MapState(_State, MutableMapping[Any, Any]):
    """Values by key; with a time to live, the first key is the one that expires first."""

    def __getitem__(self, key: Any) -> Any:
        found = self._read(_own(key))
        if found is None:
            raise KeyError(key)
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        self.declaration.types[0].require(self.declaration.name, key)
        self.declaration.types[1].require(self.declaration.name, value)
        self._write(_own(key), value)

    def __delitem__(self, key: Any) -> None:
        cell, key = self._cell(), _own(key)
        if len(cell) == 1 and key in cell:
            self.clear()
        else:
            del cell[key]

    def __contains__(self, key: object) -> bool:
        return self._read(_own(key)) is not None

    def __iter__(self) -> Iterator[Any]:
        return iter(tuple(self._cell()))

    def __len__(self) -> int:
        return len(self._cell())


def _own(key: Any) -> Any:
    """The key of an entry: there is a single not-a-number, as after a restart."""
    return NAN if isinstance(key, float) and math.isnan(key) else key


class ReducingState(_OneValue):
    """One value, to which others are added."""

    def __init__(
        self, declaration: Declaration, current: Current, function: Callable[[Any, Any], Any]
    ) -> None:
        super().__init__(declaration, current)
        self._function = function

    def add(self, value: Any) -> None:
        """Add a value.

        Raises:
            StateError: The result does not have the declared type.
        """
        kept = self._kept(None)
        value = self._function(kept.value, value) if kept else value
        self.declaration.types[0].require(self.declaration.name, value)
        self._write(None, value)


class AggregatingState(_State):
    """An accumulator of plain data: see `flowcore.windows.AggregateFunction`."""

    def __init__(self, declaration: Declaration, current: Current, function: AggregateFunction) -> None:
        super().__init__(declaration, current)
        self._function = function

    def add(self, value: Any) -> None:
        """Add a value."""
        found = self._kept(None)
        kept = found.value if found else self._function.create()
        self._write(None, self._function.add(kept, value))

    def get(self, default: Any = None) -> Any:
        """The result, or the default if there is none."""
        if not self._cell():
            return default
        return self._function.result(self._read(None))
