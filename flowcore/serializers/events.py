"""Runtime events: how does a latency marker travel where records may carry nothing but their values?

On Kafka an event is a message of the companion topic, never part of a record. Its bytes:

version (1) = 1, kind (1) = 1 for a latency marker, then the marker as in `flowcore.serializers.marker`.

An event has at most 270 bytes, whatever its own length field says.
"""

from __future__ import annotations

from flowcore.elements import LatencyMarkerEvent
from flowcore.serializers.marker import MAX_MARKER_BYTES, pack_marker, unpack_marker
from flowcore.serializers.refusal import refusal

__all__ = ["EVENT_VERSION", "LATENCY_MARKER_EVENT", "MAX_EVENT_BYTES", "LatencyMarkerEventSerializer"]

EVENT_VERSION = 1
LATENCY_MARKER_EVENT = 1
_HEAD = bytes((EVENT_VERSION, LATENCY_MARKER_EVENT))
MAX_EVENT_BYTES = len(_HEAD) + MAX_MARKER_BYTES


class LatencyMarkerEventSerializer:
    """Latency marker events to bytes and back.

    >>> LatencyMarkerEventSerializer().encode(LatencyMarkerEvent(1500, "op", 3)).hex(" ")
    '01 01 00 00 00 00 00 00 05 dc 00 00 00 03 02 6f 70'
    """

    __slots__ = ()

    def encode(self, event: LatencyMarkerEvent) -> bytes:
        """One event as bytes."""
        return _HEAD + pack_marker(event)

    def decode(self, data: bytes, where: str | None = None) -> LatencyMarkerEvent:
        """One event from all of these bytes.

        Args:
            data: What `encode` made.
            where: Coordinates for the error message, such as ``bids.events[0]@12``.

        Raises:
            SerializationError: An unknown version or kind of event, bytes missing or left over, or a
                value out of range.
        """
        where = where or "an event"
        if not len(_HEAD) <= len(data) <= MAX_EVENT_BYTES:
            what = f"has {len(data)} bytes, an event has {len(_HEAD)} to {MAX_EVENT_BYTES}"
            raise refusal(where, what, "it was cut, or written by another program; it is not counted")
        version, kind = data[:2]
        if version != EVENT_VERSION:
            what = f"has version {version}, this flowcore reads version {EVENT_VERSION}"
            raise refusal(
                where, what, "it was written by a newer flowcore or by another program; update this one"
            )
        if kind != LATENCY_MARKER_EVENT:
            what = f"is an event of kind {kind}, this flowcore knows kind {LATENCY_MARKER_EVENT}"
            raise refusal(
                where, what, "it was written by a newer flowcore or by another program; update this one"
            )
        return LatencyMarkerEvent(*unpack_marker(data[len(_HEAD) :], where))
