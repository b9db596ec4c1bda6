"""The common parts of joins of two streams: configuration, and state of a key group by side.

Null equals no key. The watermark is the combined watermark of both sides, less the allowed lateness of a join
that has one; a row up to it is late, joins nothing, and is counted. Rows without key join nothing: they are
emitted at once, or dropped.

Times are integer milliseconds since the epoch, UTC.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.joins.side_rows import PAIRS_AT_ONCE, SideRows
from flowcore.keyed import segments
from flowcore.keyed.columns import rows_not_null, take_rows, timestamps_of
from flowcore.keyed.key_index import Ints, KeyIndex, factorize_keys, to_python_keys
from flowcore.keyed.operator import KeyGroup, KeyGroupOperator, StepOutputs
from flowcore.keyed.output_columns import DELETED, EMISSION, LATE_LEFT, LATE_RIGHT, RESULTS, TIMESTAMP

__all__ = ["LEFT", "RIGHT", "JoinConfig", "JoinGroup", "NewRows", "shift_times"]

LEFT, RIGHT = 0, 1
"""The numbers of the sides."""
_SIDES = ("left", "right")
_ROWS_PER_PIECE = 1 << 16
_FEW_KEYS = 1 << 10
"""So many numbers of forgotten keys are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinConfig(KeyGroupOperator):
    """Configuration of a join; a base class.

    Attributes:
        keys: The key's columns, of rows of both sides and of the output. At least one.
        side: The column that is true in a row of the right side, false in one of the left side.
        timestamp: The column of the rows' timestamps, a 64-bit integer.
        how: The sides of which unmatched rows are kept. ``"semi"`` emits a left row once it has a partner,
            ``"anti"`` only unmatched left rows; neither has right output columns.
        rows: The columns of rows; those of the other side are null.
        left: The output columns of a left row: their name in the output, and in ``rows``.
        right: The same of a right row.
        late_left: The columns of a late left row, for `LATE_LEFT`. None if late rows are dropped.
        late_right: The same of a right row.
    """

    keys: tuple[str, ...]
    side: str
    timestamp: str
    how: Literal["inner", "left", "right", "full", "semi", "anti"]
    rows: pa.Schema
    left: Mapping[str, str]
    right: Mapping[str, str]
    late_left: tuple[str, ...] | None = None
    late_right: tuple[str, ...] | None = None
    memory_factor: ClassVar[int] = 3

    @property
    def partners(self) -> str:
        """Which rows are partners, besides their keys, as part of the layout."""
        raise NotImplementedError

    def last_partner_ms(self, side: int, times_ms: Ints) -> Ints:
        """From timestamps of rows of a side to the watermark at which they can have no more partners."""
        raise NotImplementedError

    def open(self) -> JoinGroup[Any]:
        """A key group without state."""
        raise NotImplementedError

    @property
    def layout(self) -> str:
        types = ", ".join(str(self.rows.field(name).type) for name in self.keys)
        sides = (
            ", ".join(f"{name} {self.rows.field(column).type}" for name, column in side.items())
            for side in (self.left, self.right)
        )
        return f"joined by {', '.join(self.keys)}: {types} {self.how} {self.partners}; {' and '.join(sides)}"

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        fields = [self.rows.field(name) for name in self.keys]
        for name, column in (*self.left.items(), *self.right.items()):
            fields.append(pa.field(name, self.rows.field(column).type))
        fields.append(pa.field(TIMESTAMP, pa.int64()))
        fields += [pa.field(DELETED, pa.bool_())] if self.retracts else []
        fields += [pa.field(EMISSION, pa.int64())] if self.takes_retractions else []
        late = ((LATE_LEFT, self.late_left), (LATE_RIGHT, self.late_right))
        return {
            RESULTS: pa.schema(fields),
            **{name: pa.schema([self.rows.field(each) for each in names or ()]) for name, names in late},
        }

    @property
    def retracts(self) -> bool:
        """Whether an unmatched row is emitted at once, and deleted when a partner arrives."""
        return False

    @property
    def takes_retractions(self) -> bool:
        """Whether rows of a side may be retracted. Each emitted row has a number in `EMISSION` then."""
        return False

    @property
    def keeps_unmatched(self) -> tuple[bool, bool]:
        """Whether unmatched left rows, and unmatched right rows, are emitted."""
        return self.how in ("left", "full", "anti"), self.how in ("right", "full")


Config = TypeVar("Config", bound=JoinConfig)


class NewRows(NamedTuple):
    """Rows that have a key and are not late; ``codes`` are the numbers of their keys."""

    rows: pa.RecordBatch
    is_right: npt.NDArray[np.bool_]
    codes: Ints
    times_ms: Ints


class JoinGroup(KeyGroup, Generic[Config]):
    """A key group; a base class."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._schema = config.outputs[RESULTS]
        self._columns = (config.left, config.right)
        self._keeps = config.keeps_unmatched
        self._sides = tuple(
            SideRows(
                self._stored_schema(columns),
                partial(config.last_partner_ms, side),
                retractable=config.takes_retractions,
            )
            for side, columns in enumerate(self._columns)
        )
        self._watermark_ms = MIN_TIMESTAMP_MS
        self._next_id = 0
        self._index = KeyIndex()

    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:
        """Reject late rows, emit unmatched rows without key, and join the others."""
        is_right = rows.column(self._config.side).to_numpy(zero_copy_only=False)
        times_ms = self._times_of(rows)
        late = times_ms <= self._watermark_ms
        if late.any():
            out.reject(LATE_LEFT, rows, late & ~is_right, self._config.late_left)
            out.reject(LATE_RIGHT, rows, late & is_right, self._config.late_right)
            rows, is_right, times_ms = rows.filter(pa.array(~late)), is_right[~late], times_ms[~late]
        has_key = np.ones(rows.num_rows, np.bool_)
        for name in self._config.keys:
            has_key &= rows_not_null(rows.column(name))
        for side, mine in enumerate((~is_right, is_right)):
            if self._keeps[side] and (without_key := mine & ~has_key).any():
                self._emit_without_key(side, rows.filter(pa.array(without_key)), times_ms[without_key], out)
        if not has_key.all():
            rows, is_right, times_ms = rows.filter(pa.array(has_key)), is_right[has_key], times_ms[has_key]
        if rows.num_rows:
            codes = self._number(self._key_columns(rows))
            self._join(NewRows(rows, np.asarray(is_right), codes, times_ms), out)

    def _times_of(self, rows: pa.RecordBatch) -> Ints:
        """The timestamps of rows.

        Raises:
            NoTimestampError: A row has none.
        """
        unknown = "it is not known which records it joins"
        return timestamps_of(rows, self._config.timestamp, self._config.keys, unknown)

    def _timestamps(self, times_ms: Ints) -> pa.Array[Any]:
        """The column of timestamps of emitted rows."""
        return pa.array(times_ms)

    def _join(self, new: NewRows, out: StepOutputs) -> None:
        """Join new rows and add them."""
        raise NotImplementedError

    def header(self) -> Mapping[str, Any]:
        """The watermark and the next id."""
        return {"watermark_ms": self._watermark_ms, "next_id": self._next_id}

    def delta(self) -> bytes | None:
        """The rows that arrived, or found their first partner, since the last delta."""
        changed = zip(_SIDES, (side.take_unsaved() for side in self._sides), strict=True)
        tables = {name: rows for name, rows in changed if rows.num_rows}
        return segments.encode(tables) if tables else None

    def snapshot(self) -> Iterator[bytes]:
        for name, side in zip(_SIDES, self._sides, strict=True):
            rows = side.take_all()
            for start in range(0, rows.num_rows, _ROWS_PER_PIECE):
                yield segments.encode({name: rows.slice(start, _ROWS_PER_PIECE)})

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
        found: dict[str, list[pa.RecordBatch]] = {name: [] for name in _SIDES}
        for piece in pieces:
            for name, table in segments.decode(piece):
                found[name].append(table)
        for side, tables in zip(self._sides, found.values(), strict=True):
            side.load([self._number(table) for table in tables], tables)
        self._watermark_ms, self._next_id = header["watermark_ms"], header["next_id"]
        for side in self._sides:
            side.end(self._watermark_ms)
        self._remove_ended()

    def _add(self, side: int, new: NewRows, chosen: Ints) -> None:
        part = self._stored_columns(new.rows.take(chosen), side)
        self._sides[side].add(new.codes[chosen], self._next_id, new.times_ms[chosen], part)
        self._next_id += len(chosen)

    def _emit_without_key(self, side: int, rows: pa.RecordBatch, times_ms: Ints, out: StepOutputs) -> None:
        """Emit rows without key of a side whose unmatched rows are kept."""
        self._emit_alone(side, self._stored_columns(rows, side), times_ms, out)

    def _emit(
        self,
        left: pa.RecordBatch,
        right: pa.RecordBatch,
        times_ms: Ints,
        out: StepOutputs,
        *,
        deleted: bool = False,
    ) -> None:
        """Emit or delete pairs, from the columns that are stored of each side, with the key of the left."""
        last = self._last_columns(times_ms, deleted)
        columns = [*left.columns, *right.columns[len(self._config.keys) :], *last]
        out.rows(RESULTS, pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def _emit_joined(
        self,
        left: pa.RecordBatch,
        places: Ints,
        found: npt.NDArray[np.bool_],
        times_ms: Ints,
        out: StepOutputs,
    ) -> None:
        """Emit left rows, each with the right row at its place if one was found."""
        right = self._sides[RIGHT].rows
        for start in range(0, len(times_ms), PAIRS_AT_ONCE):
            part = slice(start, start + PAIRS_AT_ONCE)
            partners = right.take(pa.array(places[part], pa.int64(), mask=~found[part]))
            self._emit(left.slice(start, PAIRS_AT_ONCE), partners, times_ms[part], out)

    def _emit_alone(
        self,
        side: int,
        rows: pa.RecordBatch,
        times_ms: Ints,
        out: StepOutputs,
        *,
        deleted: bool = False,
        emissions: Ints | None = None,
    ) -> None:
        """Emit or delete unmatched rows, from the columns that are stored.

        ``emissions`` are the numbers of `EMISSION`; None for the first one.
        """
        keys = len(self._config.keys)
        mine = rows.columns[keys:]
        other = self._sides[1 - side].rows.schema
        nulls = [pa.nulls(rows.num_rows, field.type) for field in [*other][keys:]]
        values = [*mine, *nulls] if side == LEFT else [*nulls, *mine]
        columns = [*rows.columns[:keys], *values, *self._last_columns(times_ms, deleted, emissions)]
        out.rows(RESULTS, pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def _last_columns(
        self,
        times_ms: Ints,
        deleted: bool,
        emissions: Ints | None = None,
    ) -> list[pa.Array[Any]]:
        """The columns of emitted rows after those of both sides."""
        rows, columns = len(times_ms), [self._timestamps(times_ms)]
        if self._config.retracts:
            columns.append(pa.array(np.full(rows, deleted)))
        if self._config.takes_retractions:
            columns.append(pa.array(np.zeros(rows, np.int64) if emissions is None else emissions))
        return columns

    def _remove_ended(self) -> None:
        """Remove the rows that have ended, and the keys without rows: also those that never had one."""
        for side in self._sides:
            side.remove_ended()
        if len(self._index) > 2 * sum(map(len, self._sides)) + _FEW_KEYS:
            numbers = self._index.retain(np.concatenate([side.codes for side in self._sides]))
            for side in self._sides:
                side.renumber(numbers)

    def _number(self, rows: pa.RecordBatch) -> Ints:
        """The numbers of keys, from the columns ``key0`` and so on."""
        columns = [rows.column(f"key{place}") for place in range(len(self._config.keys))]
        keys = factorize_keys(columns, rows.num_rows)
        numbers, _ = self._index.number(to_python_keys(take_rows(columns, keys.first), len(keys.first)))
        return numbers[keys.codes]

    def _key_columns(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        names = [f"key{place}" for place in range(len(self._config.keys))]
        return rows.select(list(self._config.keys)).rename_columns(names)

    def _stored_columns(self, rows: pa.RecordBatch, side: int) -> pa.RecordBatch:
        """What is stored of rows of a side."""
        keys = self._key_columns(rows)
        columns = self._columns[side]
        return pa.RecordBatch.from_arrays(
            [*keys.columns, *(rows.column(column) for column in columns.values())],
            schema=self._stored_schema(columns),
        )

    def _stored_schema(self, columns: Mapping[str, str]) -> pa.Schema:
        rows = self._config.rows
        keys = ((f"key{place}", rows.field(name).type) for place, name in enumerate(self._config.keys))
        others = ((name, rows.field(column).type) for name, column in columns.items())
        return pa.schema([*keys, *others])


def shift_times(times_ms: Ints, by_ms: int) -> Ints:
    """Times that are later by a number of milliseconds, within the limits of time."""
    if by_ms >= 0:
        return np.where(times_ms > MAX_TIMESTAMP_MS - by_ms, MAX_TIMESTAMP_MS, times_ms + by_ms)
    return np.where(times_ms < MIN_TIMESTAMP_MS - by_ms, MIN_TIMESTAMP_MS, times_ms + by_ms)
