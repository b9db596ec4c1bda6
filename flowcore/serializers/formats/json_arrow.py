"""JSON objects as Arrow arrays, column by column.

`JsonFormat` decides what a value is. Most payloads are read faster by a decoder that is made for the columns,
and that takes nothing that `JsonFormat` refuses. `JsonFormat` reads the payloads that are left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flowcore.errors import SerializationError
from flowcore.serializers.formats.columns import ValueColumn
from flowcore.serializers.formats.json_limits import exceeds_limits, is_short
from flowcore.serializers.formats.json_text import JsonFormat

__all__ = ["JsonArrowFormat"]

_Row = Any
"""A row of the decoder, with an attribute for each column."""


def _whole(kind: pa.DataType) -> tuple[Any, pa.DataType]:
    limit = 1 << (kind.bit_width - 1)
    return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)], kind


_TYPES: dict[str, tuple[Any, pa.DataType]] = {
    "TINYINT": _whole(pa.int8()), "SMALLINT": _whole(pa.int16()), "INT": _whole(pa.int32()),
    "BIGINT": _whole(pa.int64()), "DOUBLE": (float, pa.float64()), "BOOLEAN": (bool, pa.bool_()),
    "STRING": (str, pa.string()),
}  # fmt: skip
_UNNAMED = re.compile(r'["\\\x00-\x1f]')
"""Characters that a name of the decoder cannot have."""


@dataclass(frozen=True, slots=True)
class JsonArrowFormat:
    """Reads the columns of a JSON format; none of them is FLOAT.

    >>> json_format = JsonArrowFormat(JsonFormat.of([("id", "BIGINT")]))
    >>> columns, is_value = json_format.read(pa.array([b'{"id":1}', b"[]"]))
    >>> columns["id"].to_pylist(), is_value.tolist()
    ([1, None], [True, False])
    """

    value_format: JsonFormat

    def read(
        self, payloads: pa.Array[Any], used: Collection[str] | None = None
    ) -> tuple[dict[str, pa.Array[Any]], npt.NDArray[np.bool_]]:
        """The columns of some payloads, and whether each payload is a value: if not, its columns are null.

        Args:
            used: The names of the columns that are read; None for all. The others only have to fit.
        """
        columns, given = self.value_format.columns, payloads.to_pylist()
        rows, refused = _decode(columns, given, is_good=_is_text(payloads) and _is_limited(payloads, given))
        is_value = np.ones(len(rows), np.bool_)
        for place in refused:
            rows[place] = self._read_one(given[place])
            is_value[place] = rows[place] is not None
        checked = [
            number
            for number, column in enumerate(columns)
            if used is None or column.name in used or not column.nullable
        ]
        values = {number: _values(rows, number) for number in checked}
        found = {number: _convert(columns[number], each) for number, each in values.items()}
        misfits = {place for _, places in found.values() for place in places}.difference(refused)
        for place in misfits:
            row = rows[place] = self._read_one(given[place])
            is_value[place] = row is not None
            for number, column in values.items():
                column[place] = None if row is None else getattr(row, f"f{number}")
        arrays = {number: array for number, (array, _) in found.items()}
        if misfits:
            arrays = {number: _array(columns[number], each) for number, each in values.items()}
        return {columns[number].name: array for number, array in arrays.items()}, is_value

    def _read_one(self, payload: bytes | None) -> _Row | None:
        try:
            row = {} if payload is None else self.value_format.decode(payload)
        except SerializationError:
            return None
        return _row_type(self.value_format.columns)(*row.values()) if row else None


@lru_cache(maxsize=64)
def _row_type(columns: tuple[ValueColumn, ...]) -> Callable[..., _Row]:
    kinds = enumerate(_TYPES[column.type][0] for column in columns)
    # A name with other characters is no name of the decoder, which then reads no row.
    names = {f"f{place}": column.name for place, column in enumerate(columns) if _is_named(column)}
    fields = [(f"f{place}", kind | None, None) for place, kind in kinds]
    row: Callable[..., _Row] = msgspec.defstruct("Row", fields, rename=names, gc=False)
    return row


@lru_cache(maxsize=64)
def _decoder(columns: tuple[ValueColumn, ...]) -> Callable[[bytes], _Row]:
    decode: Callable[[bytes], _Row] = msgspec.json.Decoder(_row_type(columns)).decode
    return decode


def _is_named(column: ValueColumn) -> bool:
    return not _UNNAMED.search(column.name)


def _is_text(payloads: pa.Array[Any]) -> bool:
    """Whether all payloads are UTF-8."""
    try:
        payloads.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _is_limited(payloads: Any, given: list[bytes | None]) -> bool:
    """Whether no payload exceeds the limits of JSON, which the decoder does not have."""
    longest: Any = pc.max(pc.binary_length(payloads))
    return is_short(longest.as_py() or 0) or not any(
        data is not None and exceeds_limits(data) for data in given
    )


def _decode(
    columns: tuple[ValueColumn, ...], payloads: list[bytes | None], *, is_good: bool
) -> tuple[list[_Row | None], list[int]]:
    """The row of each payload, None if the decoder does not take it; the places of those."""
    if not all(map(_is_named, columns)):
        return [None] * len(payloads), [*range(len(payloads))]
    decode: Callable[[Any], _Row] = _decoder(columns)
    if is_good:
        try:
            return list(map(decode, payloads)), []
        except (ValueError, TypeError, RecursionError):
            pass
    rows = [_decode_one(decode, payload) for payload in payloads]
    return rows, [place for place, row in enumerate(rows) if row is None]


def _decode_one(decode: Callable[[bytes], _Row], payload: bytes | None) -> _Row | None:
    try:
        if payload is not None and not exceeds_limits(payload):
            payload.decode()  # the decoder skips texts of fields that are no columns
            return decode(payload)
    except (ValueError, TypeError, RecursionError):
        pass
    return None


def _values(rows: list[_Row | None], place: int) -> list[Any]:
    """The values of a column, None in payloads that are no values."""
    field = attrgetter(f"f{place}")
    try:
        return list(map(field, rows))
    except AttributeError:
        return [None if row is None else field(row) for row in rows]


def _convert(column: ValueColumn, values: list[Any]) -> tuple[pa.Array[Any], list[int]]:
    """The array of some values, and the places of those that may not be null."""
    array = _array(column, values)
    if column.nullable or not array.null_count:
        return array, []
    return array, [place for place, value in enumerate(values) if value is None]


def _array(column: ValueColumn, values: list[Any]) -> pa.Array[Any]:
    kind = _TYPES[column.type][1]
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:  # half a pair of surrogates, in whose place Java has a question mark
        return pa.array(
            [value if value is None else value.encode("utf-8", "replace") for value in values], kind
        )
