"""Ranking, as an operator on key groups: the first rows of each key in an order, emitted where they change.

A key keeps at most *n* rows. A new row takes its place among them. Later rows move down, and a row without a
rank is forgotten. After the rows of a call, 131,072 at most, each rank that has another row is emitted once.
So for each key and rank a later row replaces an earlier one. A rank that a key has never vanishes,
unless the key expires, of which nothing is emitted.

Rows that are equal in the order are in order of arrival, or of reverse arrival with ``newest_first``. With
``newest_first``, one rank and the timestamp as order, the row of a key is its newest row.

In an order, values are compared as Spark compares them: null is the smallest value, not-a-number the largest.

Source: Flink's Top-N (``ROW_NUMBER() ... <= n``) and deduplication that keeps the last row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.keyed import segments
from flowcore.keyed.columns import concat_batches, take_rows, timestamps_of
from flowcore.keyed.content import TOUCHED, read_expired_ms
from flowcore.keyed.key_index import Ints, factorize_keys, to_python_keys
from flowcore.keyed.operator import KeyGroup, KeyGroupOperator, StepOutputs
from flowcore.keyed.output_columns import RESULTS
from flowcore.ranking.kept_rows import KeptRows
from flowcore.ranking.order import sort_rows

__all__ = ["RANK", "Ranking", "RankingGroup", "is_sortable"]

RANK = "@rank"
"""The column of a row's rank, from 1."""
_ROWS_AT_ONCE = 1 << 17
_KEYS_PER_PIECE = 1 << 15
_LEAST_GARBAGE = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking(KeyGroupOperator):
    """Configuration.

    Attributes:
        keys: The key's columns. Null equals null.
        n: How many rows of a key have a rank.
        order: The columns of the order, each with whether larger values come first.
        newest_first: Of equal rows, the last to arrive is first.
        timestamp: A column of ``order`` that must not be null: a 64-bit integer; None if there is none.
        rows: The columns of a row.
        passed: The columns of an emitted row: their name in the output, and in ``rows``.
        ttl_ms: How long after its last row a key is kept, in processing time; None for ever.
    """

    keys: tuple[str, ...]
    n: int
    order: tuple[tuple[str, bool], ...]
    newest_first: bool
    timestamp: str | None
    rows: pa.Schema
    passed: Mapping[str, str]
    ttl_ms: int | None = None
    memory_factor: ClassVar[int] = 4

    @property
    def stored(self) -> Sequence[str]:
        """The columns that are kept of a row."""
        return tuple(dict.fromkeys((*(name for name, _ in self.order), *self.passed.values())))

    @property
    def layout(self) -> str:
        """The state layout. ``ttl_ms`` may change, also from and to None."""
        types = ", ".join(str(self.rows.field(name).type) for name in self.keys)
        order = ", ".join(f"{name}{' desc' * descending}" for name, descending in self.order)
        kept = ", ".join(f"{name} {self.rows.field(name).type}" for name in self.stored)
        ties = "newest" if self.newest_first else "oldest"
        return f"ranked by {', '.join(self.keys)}: {types}; {self.n} in order of {order} {ties} of {kept}"

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        fields = [pa.field(name, self.rows.field(column).type) for name, column in self.passed.items()]
        return {RESULTS: pa.schema([*fields, pa.field(RANK, pa.int32())])}

    def open(self) -> RankingGroup:
        return RankingGroup(self)


def is_sortable(kind: pa.DataType) -> bool:
    """Whether values of a type can be an order."""
    types = pa.types
    return not (types.is_nested(kind) or types.is_null(kind) or types.is_dictionary(kind))


class RankingGroup(KeyGroup):
    """A key group."""

    def __init__(self, config: Ranking) -> None:
        self._config = config
        self._now_ms = MIN_TIMESTAMP_MS
        self._expired_ms = MIN_TIMESTAMP_MS
        """Keys whose last row came until then have expired, by the times to live so far."""
        types = [config.rows.field(name).type for name in config.keys]
        self._schema = pa.schema([
            *(pa.field(f"key{place}", kind) for place, kind in enumerate(types)),
            *(config.rows.field(name) for name in config.stored),
        ])  # fmt: skip
        self._rows = KeptRows(self._schema)
        self._places: dict[Any, Ints] = {}
        """Of each key, the positions of its rows in `_rows`, by rank."""
        self._live = 0
        self._touched_ms: dict[Any, int] = {}
        """With a time to live: when the last row of each key came, in order of time."""
        self._unsaved: dict[Any, None] = {}

    @property
    def wake_ms(self) -> int | None:
        """When the next key expires."""
        first_ms = next(iter(self._touched_ms.values()), None)
        return None if first_ms is None else first_ms + (self._config.ttl_ms or 0)

    def advance_processing_time(self, processing_time_ms: int, out: StepOutputs) -> None:
        """Forget the keys that have had no row for longer than the time to live."""
        self._now_ms = max(self._now_ms, processing_time_ms)
        if self._config.ttl_ms is not None:
            self._expired_ms = max(self._expired_ms, self._now_ms - self._config.ttl_ms)
        expired = self._find_expired()
        self._expire(expired, out)
        self._forget(expired)

    def advance_watermark(self, watermark_ms: int, out: StepOutputs) -> None:
        """Rows have their ranks at once, so that watermarks change nothing."""

    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:
        """Emit each rank that has another row than before."""
        for start in range(0, rows.num_rows, _ROWS_AT_ONCE):
            self._rank(rows.slice(start, _ROWS_AT_ONCE), out)

    def header(self) -> Mapping[str, Any]:
        """Processing time, which keys have expired and, for readers of the state, the time to live."""
        return {"now_ms": self._now_ms, "expired_ms": self._expired_ms, "ttl_ms": self._config.ttl_ms}

    def delta(self) -> bytes | None:
        """All rows of the keys that have changed since the last delta."""
        changed, self._unsaved = [key for key in self._unsaved if key in self._places], {}
        return self._encode(changed) if changed else None

    def snapshot(self) -> Iterator[bytes]:
        self._unsaved = {}
        keys = [*self._places]
        for start in range(0, len(keys), _KEYS_PER_PIECE):
            yield self._encode(keys[start : start + _KEYS_PER_PIECE])

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
        """The row with rank 1 replaces all rows of its key that were read before.

        That a key has expired is not in the pieces. It depends on the time to live of then, not of now.
        """
        for piece in pieces:
            for _, table in segments.decode(piece):
                self._load(table)
        self._unsaved = {}
        self._touched_ms = dict(sorted(self._touched_ms.items(), key=lambda each: each[1]))
        self._now_ms = max(self._now_ms, header["now_ms"])
        self._expired_ms = max(self._expired_ms, read_expired_ms(header))
        self._forget(self._find_expired())
        if self._config.ttl_ms is None:
            self._touched_ms = {}
        self._compact()

    def _rank(self, rows: pa.RecordBatch, out: StepOutputs) -> None:
        config = self._config
        if config.timestamp is not None:
            timestamps_of(rows, config.timestamp, config.keys, "it is not known which row is newer")
        columns = [rows.column(name) for name in config.keys]
        codes = factorize_keys(columns, rows.num_rows)
        keys = to_python_keys(take_rows(columns, codes.first), len(codes.first))
        before = [self._places.get(key, _NONE) for key in keys]
        counts = np.fromiter(map(len, before), np.int64, len(before))
        fresh = pa.RecordBatch.from_arrays(
            [*columns, *(rows.column(name) for name in config.stored)], schema=self._schema
        )
        old = self._rows.take(np.concatenate(before)) if counts.any() else fresh.slice(0, 0)
        every = concat_batches([old, fresh])
        code_of = np.concatenate([np.repeat(np.arange(len(keys)), counts), codes.codes])
        chosen = self._sort(every, code_of, old.num_rows)
        code_of = code_of[chosen]
        begins = np.searchsorted(code_of, np.arange(len(keys)))
        rank_of = np.arange(len(chosen)) - begins[code_of]
        first = rank_of < config.n
        chosen, code_of, rank_of = chosen[first], code_of[first], rank_of[first]
        # The old rows come first, by key and rank.
        had = np.concatenate([[0], np.cumsum(counts)])[code_of] + rank_of
        changed = (rank_of >= counts[code_of]) | (chosen != had)
        replaced = had[changed & (rank_of < counts[code_of])]
        self._emit(every, chosen[changed], rank_of[changed], replaced, out)
        out.count("unranked_records", int(old.num_rows + fresh.num_rows - len(chosen)))
        self._keep(keys, every, chosen, code_of, changed)

    def _sort(self, rows: pa.RecordBatch, code_of: Ints, old: int) -> Ints:
        """The rows by key and order; the first rows are old, and in order already."""
        config, arrived = self._config, np.arange(rows.num_rows)
        if config.newest_first:
            arrived[:old] = arrived[:old][::-1]
        order = [(rows.column(name), descending) for name, descending in config.order]
        return sort_rows([(pa.array(code_of), False), *order, (pa.array(arrived), config.newest_first)])

    def _emit(
        self, rows: pa.RecordBatch, chosen: Ints, rank_of: Ints, replaced: Ints, out: StepOutputs
    ) -> None:
        """Emit the rows that were chosen; ``replaced`` are those that had their ranks before."""
        del replaced
        found = rows.select(list(dict.fromkeys(self._config.passed.values()))).take(chosen)
        columns = [found.column(name) for name in self._config.passed.values()]
        ranks = pa.array(rank_of + 1, pa.int32())
        schema = self._config.outputs[RESULTS]
        out.rows(RESULTS, pa.RecordBatch.from_arrays([*columns, ranks], schema=schema))

    def _keep(
        self, keys: Sequence[Any], rows: pa.RecordBatch, chosen: Ints, code_of: Ints, changed: Any
    ) -> None:
        """Keep the chosen rows of the keys whose ranks have changed."""
        touched = np.zeros(len(keys), np.bool_)
        touched[code_of[changed]] = True
        mine = touched[code_of]
        start = self._rows.add(rows.take(chosen[mine]))
        codes = code_of[mine]
        bounds = np.searchsorted(codes, np.arange(len(keys) + 1))
        for code in np.flatnonzero(touched).tolist():
            key = keys[code]
            self._live -= len(self._places.get(key, ()))
            self._places[key] = np.arange(start + bounds[code], start + bounds[code + 1])
            self._live += len(self._places[key])
            self._unsaved[key] = None
        if self._config.ttl_ms is not None:
            for key in keys:
                self._touched_ms.pop(key, None)
                self._touched_ms[key] = self._now_ms
            self._unsaved.update(dict.fromkeys(keys))
        self._compact()

    def _compact(self) -> None:
        """Forget the rows without a rank when they are more than the others."""
        if len(self._rows) - self._live <= max(self._live, _LEAST_GARBAGE):
            return
        positions = np.concatenate([*self._places.values(), _NONE])
        self._rows.renew(self._rows.take(positions))
        start = 0
        for key, places in self._places.items():
            self._places[key] = np.arange(start, start + len(places))
            start += len(places)

    def _find_expired(self) -> list[Any]:
        times = self._touched_ms.items()
        return [key for key, _ in takewhile(lambda each: each[1] <= self._expired_ms, times)]

    def _expire(self, keys: Sequence[Any], out: StepOutputs) -> None:
        """Emit what follows from keys that expire: nothing."""

    def _forget(self, keys: Sequence[Any]) -> None:
        for key in keys:
            del self._touched_ms[key]
            self._live -= len(self._places.pop(key))
            self._unsaved.pop(key, None)

    def _encode(self, keys: Sequence[Any]) -> bytes:
        """All rows of some keys, by key and rank."""
        places = [self._places[key] for key in keys]
        counts = [len(each) for each in places]
        rows = self._rows.take(np.concatenate(places))
        ranks = np.concatenate([np.arange(1, count + 1) for count in counts])
        touched = np.repeat([self._touched_ms.get(key, self._now_ms) for key in keys], counts)
        columns = {RANK: pa.array(ranks, pa.int64()), TOUCHED: pa.array(touched, pa.int64())}
        own = zip(rows.schema.names, rows.columns, strict=True)
        return segments.encode({"ranked": pa.record_batch({**columns, **dict(own)})})

    def _load(self, table: pa.RecordBatch) -> None:
        keys = to_python_keys(
            [table.column(f"key{place}") for place in range(len(self._config.keys))], table.num_rows
        )
        ranks, touched = (table.column(name).to_numpy().tolist() for name in (RANK, TOUCHED))
        start = self._rows.add(table.select(self._schema.names).cast(self._schema))
        found: dict[Any, list[int]] = {}
        for place, (key, rank, touched_ms) in enumerate(zip(keys, ranks, touched, strict=True), start):
            known = found.get(key)
            if known is None:
                known = found[key] = [] if rank == 1 else self._places.get(key, _NONE).tolist()
            if rank == 1:
                self._touched_ms[key] = touched_ms
            if rank == len(known) + 1:
                known.append(place)
        for key, places in found.items():
            if places:
                self._live += len(places) - len(self._places.get(key, ()))
                self._places[key] = np.array(places, np.int64)


_NONE: Ints = np.empty(0, np.int64)
