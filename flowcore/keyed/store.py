"""The store of a key group's state between two steps.

It contains one small text, which is rewritten in each step, with a manifest for each operator by name. It
also contains segments, which are numbered by operator and written once. On Spark both are in the checkpointed
state store, so they change together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

__all__ = ["GroupStore", "OperatorStore", "read_manifests", "write_manifests"]


class GroupStore(Protocol):
    """The stored state of all operators of an exchange in one key group."""

    def manifests(self) -> bytes | None:
        """The manifests of all operators, as JSON."""

    def put_manifests(self, manifests: bytes, /) -> None:
        """Replace the manifests."""

    def segment(self, operator: str, number: int, /) -> bytes | None:
        """A segment of an operator; None if there is none of this number."""

    def put_segment(self, operator: str, number: int, content: bytes, /) -> None:
        """Write a segment."""

    def remove_segment(self, operator: str, number: int, /) -> None:
        """Remove a segment."""


class OperatorStore:
    """The part of a key group's store that one operator uses; its manifest is among ``manifests``."""

    def __init__(self, group: GroupStore, operator: str, manifests: dict[str, Any]) -> None:
        self._group = group
        self._operator = operator
        self._manifests = manifests

    def manifest(self) -> Mapping[str, Any] | None:
        """The manifest, if any."""
        return self._manifests.get(self._operator)

    def put_manifest(self, manifest: Mapping[str, Any], /) -> None:
        """Replace the manifest."""
        self._manifests[self._operator] = manifest

    def segment(self, number: int, /) -> bytes | None:
        """A segment; None if there is none of this number."""
        return self._group.segment(self._operator, number)

    def put_segment(self, number: int, content: bytes, /) -> None:
        """Write a segment."""
        self._group.put_segment(self._operator, number, content)

    def remove_segment(self, number: int, /) -> None:
        """Remove a segment."""
        self._group.remove_segment(self._operator, number)


def read_manifests(written: bytes | None) -> dict[str, Any]:
    """The manifests of a key group, by operator; none if nothing was written."""
    found: dict[str, Any] = json.loads(written) if written else {}
    return found


def write_manifests(manifests: Mapping[str, Any]) -> bytes:
    """The text of manifests."""
    return json.dumps(manifests, separators=(",", ":")).encode()
