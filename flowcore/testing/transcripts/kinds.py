"""The registry of the kinds of transcripts that can be replayed in memory."""

from collections.abc import Mapping

from flowcore.testing.transcripts.backlog import BacklogRunner, CheckpointIntervalRunner
from flowcore.testing.transcripts.bundle import BundleRunner
from flowcore.testing.transcripts.flush import FlushRunner
from flowcore.testing.transcripts.join import SIDES, JoinRunner
from flowcore.testing.transcripts.runner import TranscriptKind
from flowcore.testing.transcripts.serializer import SerializerRunner
from flowcore.testing.transcripts.session_merge import SessionMergeRunner, agrees_with_merge
from flowcore.testing.transcripts.watermarks import WatermarkRunner
from flowcore.testing.transcripts.window import WindowRunner

__all__ = ["KINDS", "NOT_LIVE"]

KINDS: Mapping[str, TranscriptKind] = {
    "backlog": TranscriptKind(build=BacklogRunner),
    "bundle": TranscriptKind(build=BundleRunner),
    "checkpoint-interval": TranscriptKind(
        build=CheckpointIntervalRunner, actions=frozenset({"backlog", "end_of_data"})
    ),
    "flush": TranscriptKind(
        build=FlushRunner,
        actions=frozenset({"input_idle", "latency_marker", "watermark_status"}),
        in_order=True,
    ),
    "join": TranscriptKind(build=JoinRunner, actions=frozenset(SIDES)),
    "serializer": TranscriptKind(
        build=SerializerRunner, actions=frozenset({"write", "read_timestamp_of", "through_event", "settings"})
    ),
    "session-merge": TranscriptKind(
        build=SessionMergeRunner, actions=frozenset({"merge", "add", "retire"}), agrees=agrees_with_merge
    ),
    "watermarks": TranscriptKind(build=WatermarkRunner),
    "window": TranscriptKind(build=WindowRunner),
}

NOT_LIVE: Mapping[str, str] = {
    "bundle": "a live query bundles the records of a batch, whatever their number",
    "checkpoint-interval": "a live query takes a checkpoint with each batch, and has no timer for them",
    "session-merge": "windows merge inside an operator; transcripts of sessions show the effect",
}
"""Why transcripts of a kind have no meaning as live flows."""
