"""Spark's hash of key columns: which key group a key is in.

Spark computes ``pmod(hash(key...), key_groups)`` with its 32-bit form of MurmurHash3 (Austin Appleby), the
seed 42, and a text's last bytes one by one. State stays where it is, so Python has to find the same groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["HASHED_TYPES", "key_groups_of", "spark_hash"]

_Hashes = npt.NDArray[np.uint32]
_SEED = 42
_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_FEW = 128
"""So many texts that are longer than all others are hashed one by one from there on."""
HASHED_TYPES = (
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.bool_(), pa.string(), pa.binary(),
)  # fmt: skip
"""The types of keys that `spark_hash` takes."""


def key_groups_of(keys: Sequence[pa.Array[Any]], rows: int, key_groups: int) -> npt.NDArray[np.int32]:
    """The key group of each row, by the columns of its key; 0 without columns."""
    if not keys:
        return np.zeros(rows, np.int32)
    groups: npt.NDArray[np.int32] = spark_hash(keys) % np.int32(key_groups)
    return groups


def spark_hash(columns: Sequence[pa.Array[Any]]) -> npt.NDArray[np.int32]:
    """Spark's ``hash`` of rows. A null leaves the hash of the columns before it as it is.

    Args:
        columns: At least one, of `HASHED_TYPES`.
    """
    hashes = np.full(len(columns[0]), _SEED, np.uint32)
    with np.errstate(over="ignore"):
        for column in columns:
            added = _hash(column, hashes)
            if column.null_count:
                added = np.where(column.is_valid().to_numpy(zero_copy_only=False), added, hashes)
            hashes = added
    return hashes.view(np.int32)


def _hash(column: pa.Array[Any], seeds: _Hashes) -> _Hashes:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _hash_bytes(column.cast(pa.binary()), seeds)
    if column.null_count:
        column = column.fill_null(False if pa.types.is_boolean(kind) else 0)
    if pa.types.is_int64(kind):
        words = column.to_numpy().view(np.uint32).reshape(-1, 2)
        return _finish(_mix(_mix(seeds, words[:, 0]), words[:, 1]), 8)
    numbers = column.cast(pa.int32()).to_numpy().view(np.uint32)
    return _finish(_mix(seeds, numbers), 4)


def _hash_bytes(column: Any, seeds: _Hashes) -> _Hashes:
    sizes: Any = pc.binary_length(column)
    lengths = sizes.fill_null(0).to_numpy().astype(np.int64)
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)[:-1].astype(
        np.int64
    )
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8)
    hashes, words = seeds.copy(), lengths // 4
    common = int(np.partition(words, -_FEW)[-_FEW]) if len(words) >= _FEW else 0
    for word in range(common):
        rows = np.flatnonzero(words > word)
        at = offsets[rows] + 4 * word
        found = np.zeros(len(rows), np.uint32)
        for byte in range(4):
            found |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
        hashes[rows] = _mix(hashes[rows], found)
    for place in np.flatnonzero(words > common).tolist():
        first = offsets[place] + 4 * common
        hashes[place] = _hash_words(data[first : offsets[place] + 4 * words[place]], int(hashes[place]))
    rest = lengths % 4
    for byte in range(3):
        rows = np.flatnonzero(rest > byte)
        last = data[offsets[rows] + 4 * words[rows] + byte]
        hashes[rows] = _mix(hashes[rows], last.view(np.int8).astype(np.int32).view(np.uint32))
    return _finish(hashes, lengths.astype(np.uint32))


def _hash_words(text: npt.NDArray[np.uint8], found: int) -> int:
    """The hash after the whole words of one text, from the one before them."""
    for word in _scramble(np.frombuffer(text.tobytes(), "<u4")).tolist():
        found ^= word
        found = (((found << 13) | (found >> 19)) * 5 + 0xE6546B64) & 0xFFFFFFFF
    return found


def _scramble(words: _Hashes) -> _Hashes:
    words = words * _C1
    words = (words << np.uint32(15)) | (words >> np.uint32(17))
    return words * _C2


def _mix(hashes: _Hashes, words: _Hashes) -> _Hashes:
    hashes = hashes ^ _scramble(words)
    hashes = (hashes << np.uint32(13)) | (hashes >> np.uint32(19))
    return hashes * np.uint32(5) + np.uint32(0xE6546B64)


def _finish(hashes: _Hashes, length: int | _Hashes) -> _Hashes:
    hashes = hashes ^ np.asarray(length, np.uint32)
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))
