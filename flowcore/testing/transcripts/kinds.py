"""The kinds of transcripts that can be replayed here, by name."""

from __future__ import annotations

from collections.abc import Mapping

from flowcore.testing.transcripts import serializer, watermarks
from flowcore.testing.transcripts.runner import Kind

__all__ = ["KINDS"]

_ALL: tuple[Kind, ...] = (serializer.KIND, watermarks.KIND)

KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _ALL}
