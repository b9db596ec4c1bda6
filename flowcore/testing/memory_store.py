"""A store of one operator's state in a key group, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowcore.keyed.store import OperatorStore, read_manifests, write_manifests

__all__ = ["MemoryStore"]


class MemoryStore(OperatorStore):
    """The manifest as the text ``kept``, and the ``segments`` by number."""

    def __init__(self, kept: bytes | None = None, segments: dict[int, bytes] | None = None) -> None:
        self.kept = kept
        self.segments = {} if segments is None else segments

    def copy(self) -> MemoryStore:
        """An independent copy."""
        return MemoryStore(self.kept, dict(self.segments))

    def manifest(self) -> Mapping[str, Any] | None:
        return None if self.kept is None else read_manifests(self.kept)

    def put_manifest(self, manifest: Mapping[str, Any], /) -> None:
        self.kept = write_manifests(manifest)

    def segment(self, number: int, /) -> bytes | None:
        return self.segments.get(number)

    def put_segment(self, number: int, content: bytes, /) -> None:
        self.segments[number] = content

    def remove_segment(self, number: int, /) -> None:
        self.segments.pop(number, None)
