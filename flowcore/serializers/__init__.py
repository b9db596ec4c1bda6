"""Serializers: how does a stream element become bytes, and come back?

- `tagged.TaggedSerializer`: any element; a tag in front of each, and a record's timestamp;
- `value_only.ValueOnlySerializer`: records only, and only their values;
- `events.LatencyMarkerEventSerializer`: latency markers, beside the records instead of among them;
- `formats`: what a record's value looks like in bytes.

Nothing here knows Spark or Kafka, and nothing here unpickles.
"""

from flowcore.serializers.events import LatencyMarkerEventSerializer
from flowcore.serializers.tagged import Tag, TaggedSerializer
from flowcore.serializers.value_only import ValueOnlyRecord, ValueOnlySerializer

__all__ = [
    "LatencyMarkerEventSerializer",
    "Tag",
    "TaggedSerializer",
    "ValueOnlyRecord",
    "ValueOnlySerializer",
]
