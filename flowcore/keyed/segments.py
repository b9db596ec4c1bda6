"""Encoding of deltas and snapshots of columnar state.

A segment is a version byte and then tables by name: for each the length of its name (1 byte), the name, the
length of its content (8 bytes, big-endian), and the content as an Arrow IPC stream with its schema.
"""

from collections.abc import Iterator, Mapping
from struct import Struct

import pyarrow as pa

from flowcore.errors import StateError
from flowcore.keyed.versions import require_version

__all__ = ["SEGMENT_VERSION", "decode", "encode", "join_pieces", "split_piece"]

SEGMENT_VERSION = 1
_LENGTH = Struct(">Q")


def encode(tables: Mapping[str, pa.RecordBatch]) -> bytes:
    """A segment of tables by name.

    >>> segment = encode({"panes": pa.record_batch({"a": [1, 2]})})
    >>> [(name, table.num_rows) for name, table in decode(segment)]
    [('panes', 2)]
    """
    parts = [bytes([SEGMENT_VERSION])]
    for name, table in tables.items():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_batch(table)
        content = sink.getvalue().to_pybytes()
        written = name.encode()
        parts += [bytes([len(written)]), written, _LENGTH.pack(len(content)), content]
    return b"".join(parts)


def decode(segment: bytes) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The tables of a segment.

    Raises:
        StateError: The segment has another version, or is truncated.
    """
    require_version("state segment", segment[0] if segment else None, SEGMENT_VERSION)
    position = 1
    while position < len(segment):
        end = position + 1 + segment[position]
        name = segment[position + 1 : end].decode()
        (length,) = _LENGTH.unpack_from(segment, end)
        start = end + _LENGTH.size
        position = start + length
        if position > len(segment):
            msg = (
                f"state segment of {len(segment)} bytes is truncated in {name!r}: restore a copy of the "
                "checkpoint, or start a new one"
            )
            raise StateError(msg)
        with pa.ipc.open_stream(pa.py_buffer(segment)[start:position]) as reader:
            for batch in reader:
                yield name, batch


def join_pieces(operator: bytes, buffer: bytes) -> bytes:
    """A piece of an operator's state and one of its flush buffer, either of which may be empty."""
    return _LENGTH.pack(len(operator)) + operator + buffer


def split_piece(piece: bytes) -> tuple[bytes, bytes]:
    """The parts of `join_pieces`."""
    end = _LENGTH.size + _LENGTH.unpack_from(piece)[0]
    return piece[_LENGTH.size : end], piece[end:]
