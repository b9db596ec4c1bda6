"""The collector of latency counts messages that it cannot read, and goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from flowcore.elements import LatencyMarkerEvent
from flowcore.kafka.latency_collector import LatencyCollector
from flowcore.serializers.events import LatencyMarkerEventSerializer


def _message(value: bytes, headers: Callable[[], Any]) -> Any:
    message = Mock(headers=headers)
    message.value.return_value = value
    message.topic.return_value = "out.events"
    message.partition.return_value, message.offset.return_value = 1, 7
    return message


@pytest.mark.parametrize(
    "error",
    [
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        SystemError("<method 'headers'> returned a result with an exception set"),
    ],
    ids=["unicode", "system"],
)
def test_headers_that_are_not_text_are_one_bad_message(error: Exception) -> None:
    """The client raises for a key of a header that is not UTF-8, and others may write such keys."""
    collector = LatencyCollector("127.0.0.1:1", {"out": "sink"})
    marker = LatencyMarkerEventSerializer().encode(LatencyMarkerEvent(1, "source", 0))

    collector._record(_message(marker, Mock(side_effect=error)), 2_000)
    collector._record(_message(marker, lambda: None), 2_000)

    assert collector.bad == 1
    assert collector.last_bad is not None
    assert "out.events[1]@7" in collector.last_bad
    assert [found.count for found in collector.read()] == [1]
