"""Aggregates of a changelog, as an operator on key groups: values are added, and taken back.

A group has the rows that were inserted into it and not retracted. At the end of a step, and before a control
element in it, each group whose result has changed is emitted once, so that a later row of a group replaces
the earlier one. A group without rows is forgotten; if it was emitted before, a row says that it is deleted.
Without columns to group by there is one group, which stays.

Source: Flink's group aggregate with retraction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.keyed import segments
from flowcore.keyed.columns import rows_not_null, take_rows
from flowcore.keyed.content import NEWEST
from flowcore.keyed.key_index import Ints, factorize_keys, find_last_rows, to_key_columns, to_python_keys
from flowcore.keyed.operator import KeyGroupOperator, StepOutputs
from flowcore.keyed.output_columns import DELETED, RESULTS, TIMESTAMP
from flowcore.ranking.kept_rows import KeptRows
from flowcore.retraction.collecting import CollectingGroup
from flowcore.retraction.totals import Argument, Total
from flowcore.windows.built_in import BuiltIn
from flowcore.windows.columnar.accumulators import result_type

__all__ = ["RetractingAggregates", "RetractingGroup"]

_ROWS = "@rows"
_VALUE, _COUNT = "@value", "@count"
_KEYS_PER_PIECE = 1 << 15


@dataclass(frozen=True, slots=True, kw_only=True)
class RetractingAggregates(KeyGroupOperator):
    """Configuration.

    Attributes:
        keys: The columns of a group. Null equals null.
        aggregates: ``(output column, aggregate)``: count (distinct or not), count_if, sum, avg, min, max.
        change: The column that is 1 where a row is inserted, and -1 where it is retracted.
        rows: The columns of a row.
        passed: Columns of an emitted row that are those of the last row of its group: their name in the
            output, and in ``rows``. `TIMESTAMP` is that of its newest row.
    """

    keys: tuple[str, ...]
    aggregates: tuple[tuple[str, BuiltIn], ...]
    change: str
    rows: pa.Schema
    passed: Mapping[str, str]
    memory_factor: ClassVar[int] = 8

    @property
    def arguments(self) -> Sequence[Argument]:
        """The columns that are aggregated."""
        found: dict[str, list[BuiltIn]] = {}
        for _, each in self.aggregates:
            for column in each.columns:
                found.setdefault(column, []).append(each)
        return tuple(
            Argument(
                column,
                self.rows.field(column).type,
                sums=any(each.function in {"sum", "avg", "count_if"} for each in users),
                counts=any(each.function in {"min", "max"} or each.distinct for each in users),
            )
            for column, users in found.items()
        )

    @property
    def layout(self) -> str:
        """The state layout."""
        types = ", ".join(str(self.rows.field(name).type) for name in self.keys)
        kept = [
            f"{'sum ' * each.sums}{'values ' * each.counts}{each.column} {each.type}"
            for each in self.arguments
        ]
        return f"totals by {', '.join(self.keys)}: {types}; {', '.join(['rows', *kept])}"

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        """The types of the results."""
        known = {each.name: each.type for each in self.rows}
        return {name: result_type(each, known) for name, each in self.aggregates}

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        return {
            RESULTS: pa.schema([
                *(self.rows.field(name) for name in self.keys),
                *(pa.field(name, kind) for name, kind in self.types.items()),
                pa.field(DELETED, pa.bool_()),
                *(pa.field(name, self.rows.field(column).type) for name, column in self.passed.items()),
            ])
        }  # fmt: skip

    def open(self) -> RetractingGroup:
        return RetractingGroup(self)


@dataclass(slots=True)
class _Group:
    """The state of a group.

    Attributes:
        totals: The totals of each argument.
        newest_ms: The latest timestamp of a row; the smallest one if none has one.
        result: The results that were emitted last; None if that is not known.
    """

    totals: list[Total]
    rows: int = 0
    newest_ms: int = MIN_TIMESTAMP_MS
    result: tuple[Any, ...] | None = None


@dataclass(slots=True)
class _Step:
    """The groups that the rows of a step have changed since the last emission.

    Attributes:
        last: The position of each group's last row among these rows.
        before: The results that the groups had before.
    """

    last: dict[Any, int] = field(default_factory=dict)
    before: dict[Any, tuple[Any, ...]] = field(default_factory=dict)


class RetractingGroup(CollectingGroup):
    """A key group."""

    def __init__(self, config: RetractingAggregates) -> None:
        self._config = config
        self._arguments = config.arguments
        places = {each.column: place for place, each in enumerate(self._arguments)}
        self._results = [
            (each, places[each.columns[0]] if each.columns else -1, config.types[name])
            for name, each in config.aggregates
        ]
        self._key_types = [config.rows.field(name).type for name in config.keys]
        names = [f"key{place}" for place in range(len(config.keys))]
        self._keys = [pa.field(name, kind) for name, kind in zip(names, self._key_types, strict=True)]
        self._passed = pa.schema([config.rows.field(name) for name in dict.fromkeys(config.passed.values())])
        self._timestamp = config.passed.get(TIMESTAMP)
        self._groups: dict[Any, _Group] = {}
        self._step = _Step()
        self._step_rows = KeptRows(self._passed)
        self._unsaved: dict[Any, None] = {}
        self._unsaved_values: list[dict[tuple[Any, Any], None]] = [{} for _ in self._arguments]

    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:  # noqa: ARG002 - emitted later, once for each group
        """Add and take back the values of rows."""
        config = self._config
        columns = [rows.column(name) for name in config.keys]
        codes = factorize_keys(columns, rows.num_rows)
        keys = to_python_keys(take_rows(columns, codes.first), len(codes.first))
        groups = [self._open(key) for key in keys]
        changes: Ints = rows.column(config.change).to_numpy().astype(np.int64)
        for group, number in zip(groups, _sum_by(codes.codes, changes, len(keys)), strict=True):
            group.rows += number
        self._renew(groups, codes.codes, rows)
        for place, argument in enumerate(self._arguments):
            column = rows.column(argument.column)
            (valid,) = np.nonzero(rows_not_null(column))
            found = codes.codes[valid], changes[valid]
            totals = [group.totals[place] for group in groups]
            for total, number in zip(totals, _sum_by(*found, len(keys)), strict=True):
                total.count_of_values += number
            if argument.sums or argument.counts:
                self._fold(place, column.take(valid), keys, totals, *found)
        start = self._step_rows.add(rows.select(self._passed.names))
        last = start + find_last_rows(codes.codes, len(keys))
        self._step.last.update(zip(keys, last.tolist(), strict=True))

    def emit_changes(self, out: StepOutputs) -> None:
        """Emit each group whose result has changed; those without rows are deleted, and forgotten."""
        step, self._step = self._step, _Step()
        emitted: list[tuple[Any, _Group, bool]] = []
        for key in step.last:
            group, before = self._groups[key], step.before.get(key)
            gone = not group.rows and bool(self._config.keys)
            group.result = self._compute(group)
            if gone:
                del self._groups[key]
            if (gone and before is not None) or (not gone and group.result != before):
                emitted.append((key, group, gone))
        if emitted:
            self._emit(emitted, np.array([step.last[key] for key, _, _ in emitted]), out)
        self._unsaved.update(dict.fromkeys(step.last))
        self._step_rows = KeptRows(self._passed)

    def header(self) -> Mapping[str, Any]:
        return {}

    def delta(self) -> bytes | None:
        """The groups that have changed since the last delta, and the numbers of the values that have."""
        if not self._unsaved:
            return None
        keys, self._unsaved = [*self._unsaved], {}
        values, self._unsaved_values = self._unsaved_values, [{} for _ in self._arguments]
        return self._encode(keys, [[*each] for each in values])

    def snapshot(self) -> Iterator[bytes]:
        self._unsaved, self._unsaved_values = {}, [{} for _ in self._arguments]
        keys = [*self._groups]
        for start in range(0, len(keys), _KEYS_PER_PIECE):
            piece = keys[start : start + _KEYS_PER_PIECE]
            values = [
                [(key, value) for key in piece for value in self._groups[key].totals[place].values]
                for place in range(len(self._arguments))
            ]
            yield self._encode(piece, values)

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:  # noqa: ARG002 - it is empty
        for piece in pieces:
            for name, table in segments.decode(piece):
                if name == "totals":
                    self._load_totals(table)
                else:
                    self._load_values(int(name.removeprefix("values")), table)
        self._unsaved, self._unsaved_values = {}, [{} for _ in self._arguments]

    def _open(self, key: Any) -> _Group:
        """A group that is about to change."""
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group([Total() for _ in self._arguments])
        elif key not in self._step.last:
            self._step.before[key] = self._compute(group) if group.result is None else group.result
        return group

    def _renew(self, groups: Sequence[_Group], codes: Ints, rows: pa.RecordBatch) -> None:
        """Note the newest timestamps of groups, if rows have some; the code of a row is that of its group."""
        if self._timestamp is None:
            return
        newest_ms = np.full(len(groups), MIN_TIMESTAMP_MS, np.int64)
        np.maximum.at(newest_ms, codes, rows.column(self._timestamp).fill_null(MIN_TIMESTAMP_MS).to_numpy())
        for group, time_ms in zip(groups, newest_ms.tolist(), strict=True):
            group.newest_ms = max(group.newest_ms, time_ms)

    def _fold(  # noqa: PLR0917 - an argument, and its values
        self,
        place: int,
        column: pa.Array[Any],
        keys: Sequence[Any],
        totals: Sequence[Total],
        codes: Ints,
        changes: Ints,
    ) -> None:
        """Add and take back the values of an argument."""
        argument, unsaved = self._arguments[place], self._unsaved_values[place]
        convert = argument.to_integer() if argument.sums else None
        if argument.counts:  # equal ones together; what is only summed is mostly distinct
            equal = factorize_keys([pa.array(codes), column], len(codes))
            changes = np.array(_sum_by(equal.codes, changes, len(equal.first)), np.int64)
            codes, column = codes[equal.first], column.take(equal.first)
        for code, change, value in zip(codes.tolist(), changes.tolist(), argument.read(column), strict=True):
            total = totals[code]
            finite = not argument.floating or value - value == 0
            if argument.counts or not finite:
                total.add_occurrences(value, change)
                unsaved[keys[code], value] = None
            if convert is not None and finite:
                total.total += change * convert(value)

    def _compute(self, group: _Group) -> tuple[Any, ...]:
        return tuple(
            group.rows if place < 0 else group.totals[place].result(aggregate, self._arguments[place], kind)
            for aggregate, place, kind in self._results
        )

    def _emit(self, emitted: Sequence[tuple[Any, _Group, bool]], last: Ints, out: StepOutputs) -> None:
        config, passed = self._config, self._step_rows.take(last)
        results = [
            pa.array([(group.result or ())[place] for _, group, _ in emitted], kind)
            for place, kind in enumerate(config.types.values())
        ]
        columns = {name: passed.column(column) for name, column in config.passed.items()}
        if self._timestamp is not None:
            columns[TIMESTAMP] = _to_times(group for _, group, _ in emitted)
        arrays = [
            *to_key_columns([key for key, _, _ in emitted], self._key_types),
            *results,
            pa.array([gone for _, _, gone in emitted], pa.bool_()),
            *columns.values(),
        ]
        out.rows(RESULTS, pa.RecordBatch.from_arrays(arrays, schema=config.outputs[RESULTS]))

    def _encode(self, keys: Sequence[Any], values: Sequence[Sequence[tuple[Any, Any]]]) -> bytes:
        """Groups, of which deleted ones have no rows; and values, of which removed ones have the number 0."""
        none = _Group([Total() for _ in self._arguments])
        groups = [self._groups.get(key, none) for key in keys]
        totals: list[pa.Array[Any]] = [pa.array([group.rows for group in groups], pa.int64())]
        fields = [*self._keys, pa.field(_ROWS, pa.int64())]
        for place, argument in enumerate(self._arguments):
            own = [group.totals[place] for group in groups]
            fields.append(pa.field(f"n:{argument.column}", pa.int64()))
            totals.append(pa.array([each.count_of_values for each in own], pa.int64()))
            if argument.sums:
                fields.append(pa.field(f"sum:{argument.column}", pa.string()))
                totals.append(pa.array([argument.write_sum(each.total) for each in own], pa.string()))
        if self._timestamp is not None:
            fields.append(pa.field(NEWEST, pa.int64()))
            totals.append(_to_times(groups))
        tables = {
            "totals": pa.RecordBatch.from_arrays(
                [*to_key_columns(keys, self._key_types), *totals], schema=pa.schema(fields)
            )
        }
        for place, entries in enumerate(values):
            if entries:
                tables[f"values{place}"] = self._encode_values(place, entries, none)
        return segments.encode(tables)

    def _encode_values(self, place: int, entries: Sequence[tuple[Any, Any]], none: _Group) -> pa.RecordBatch:
        kind = self._arguments[place].type
        counts = [self._groups.get(key, none).totals[place].values.get(value, 0) for key, value in entries]
        return pa.RecordBatch.from_arrays(
            [
                pa.array([value for _, value in entries], kind),
                *to_key_columns([key for key, _ in entries], self._key_types),
                pa.array(counts, pa.int64()),
            ],
            schema=pa.schema([pa.field(_VALUE, kind), *self._keys, pa.field(_COUNT, pa.int64())]),
        )

    def _load_totals(self, table: pa.RecordBatch) -> None:
        numbers: dict[str, list[Any]] = {
            name: table.column(name).to_pylist() for name in table.schema.names[len(self._keys) :]
        }
        newest_ms = numbers.get(NEWEST, [None] * table.num_rows)  # an earlier version wrote none
        for place, (key, rows) in enumerate(zip(self._keys_of(table), numbers[_ROWS], strict=True)):
            if not rows and self._keys:
                self._groups.pop(key, None)
                continue
            group = self._groups.setdefault(key, _Group([Total() for _ in self._arguments]))
            group.rows, group.result = rows, None
            group.newest_ms = MIN_TIMESTAMP_MS if newest_ms[place] is None else newest_ms[place]
            for argument, total in zip(self._arguments, group.totals, strict=True):
                total.count_of_values = numbers[f"n:{argument.column}"][place]
                if argument.sums:
                    total.total = argument.read_sum(numbers[f"sum:{argument.column}"][place])

    def _load_values(self, place: int, table: pa.RecordBatch) -> None:
        values = self._arguments[place].read(table.column(_VALUE))
        counts: list[Any] = table.column(_COUNT).to_pylist()
        for key, value, count in zip(self._keys_of(table), values, counts, strict=True):
            group = self._groups.get(key)
            if group is not None:
                group.totals[place].set(value, count)
                group.result = None

    def _keys_of(self, table: pa.RecordBatch) -> Iterable[Any]:
        return to_python_keys([table.column(each.name) for each in self._keys], table.num_rows)


def _to_times(groups: Iterable[_Group]) -> pa.Array[Any]:
    """The newest timestamps of groups, null if there is none."""
    times_ms = [group.newest_ms for group in groups]
    return pa.array([None if each == MIN_TIMESTAMP_MS else each for each in times_ms], pa.int64())


def _sum_by(codes: Ints, numbers: Ints, count: int) -> list[int]:
    """The sum of numbers by code."""
    found = np.zeros(count, np.int64)
    np.add.at(found, codes, numbers)
    return found.tolist()
