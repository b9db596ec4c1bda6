"""The store of a key group's state between two steps.

It contains one manifest, which is small and rewritten in each step, and numbered segments that are written
once. On Spark both are in the checkpointed state store, so they change together.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["MemoryStore", "Store"]


class Store(Protocol):
    """The stored state of one key group."""

    def manifest(self) -> bytes | None:
        """The manifest, if any."""
        ...

    def put_manifest(self, manifest: bytes, /) -> None:
        """Replace the manifest."""
        ...

    def segment(self, number: int, /) -> bytes | None:
        """A segment; None if there is none of this number."""
        ...

    def put_segment(self, number: int, content: bytes, /) -> None:
        """Write a segment."""
        ...

    def remove_segment(self, number: int, /) -> None:
        """Remove a segment."""
        ...


class MemoryStore:
    """A store in memory, for tests and tools."""

    def __init__(self, kept: bytes | None = None, segments: dict[int, bytes] | None = None) -> None:
        self.kept = kept
        self.segments = {} if segments is None else segments

    def copy(self) -> MemoryStore:
        """An independent copy."""
        return MemoryStore(self.kept, dict(self.segments))

    def manifest(self) -> bytes | None:
        return self.kept

    def put_manifest(self, manifest: bytes, /) -> None:
        self.kept = manifest

    def segment(self, number: int, /) -> bytes | None:
        return self.segments.get(number)

    def put_segment(self, number: int, content: bytes, /) -> None:
        self.segments[number] = content

    def remove_segment(self, number: int, /) -> None:
        self.segments.pop(number, None)
