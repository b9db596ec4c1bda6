"""Stores: where is the state of a key group kept between two steps?

As one manifest, small and rewritten in each step, and numbered segments that are written once. On Spark both
are in the checkpointed state store, so they change together or not at all.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["MemoryStore", "Store"]


class Store(Protocol):
    """The state of one key group, as a step finds and leaves it."""

    def manifest(self) -> bytes | None:
        """What was put last; None if nothing was."""
        ...

    def put_manifest(self, manifest: bytes, /) -> None:
        """Replace it."""
        ...

    def segment(self, number: int, /) -> bytes | None:
        """A segment; None if there is none of this number."""
        ...

    def put_segment(self, number: int, content: bytes, /) -> None:
        """Write a segment."""
        ...

    def remove_segment(self, number: int, /) -> None:
        """Forget a segment."""
        ...


class MemoryStore:
    """A store in memory, for tests and tools.

    Attributes:
        kept: The manifest, if any.
        segments: By number.
    """

    def __init__(self, kept: bytes | None = None, segments: dict[int, bytes] | None = None) -> None:
        self.kept = kept
        self.segments = {} if segments is None else segments

    def copy(self) -> MemoryStore:
        """The same content; what happens to one does not happen to the other."""
        return MemoryStore(self.kept, dict(self.segments))

    def manifest(self) -> bytes | None:
        """What was put last."""
        return self.kept

    def put_manifest(self, manifest: bytes, /) -> None:
        """Replace it."""
        self.kept = manifest

    def segment(self, number: int, /) -> bytes | None:
        """A segment."""
        return self.segments.get(number)

    def put_segment(self, number: int, content: bytes, /) -> None:
        """Write a segment."""
        self.segments[number] = content

    def remove_segment(self, number: int, /) -> None:
        """Forget a segment."""
        self.segments.pop(number, None)
