"""Serializers of stream elements.

- `tagged.TaggedSerializer`: any element: a tag, then the element, a record with its timestamp;
- `value_only.ValueOnlySerializer`: records only, without timestamp;
- `events.LatencyMarkerEventSerializer`: latency markers in a topic of their own;
- `formats`: formats of a record's value.

Independent of Spark and Kafka; nothing is unpickled.
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
