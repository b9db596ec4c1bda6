"""The kinds of transcripts that can be replayed here, by name."""

from __future__ import annotations

from collections.abc import Mapping

from flowcore.testing.transcripts import (
    backlog,
    bundle,
    checkpoint_interval,
    flush,
    serializer,
    session_merge,
    watermarks,
    window,
)
from flowcore.testing.transcripts.runner import TranscriptKind

__all__ = ["KINDS"]

_ALL: tuple[TranscriptKind, ...] = (
    backlog.KIND,
    bundle.KIND,
    checkpoint_interval.KIND,
    flush.KIND,
    serializer.KIND,
    session_merge.KIND,
    watermarks.KIND,
    window.KIND,
)

KINDS: Mapping[str, TranscriptKind] = {kind.name: kind for kind in _ALL}
