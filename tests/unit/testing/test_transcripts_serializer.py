"""Transcripts of serializers, in addition to those of the contract: settings, and every element."""

from __future__ import annotations

from typing import Any

import pytest

from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.errors import ConfigurationError
from flowcore.testing.transcripts import Refused
from flowcore.testing.transcripts.serializer import SerializerRunner

NO_TIMESTAMPS = {"pipeline.force-timestamp-support": False, "pipeline.auto-watermark-interval": 0}


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        ({}, "tagged"),
        (NO_TIMESTAMPS, "value-only"),
        ({**NO_TIMESTAMPS, "metrics.latency.interval": 1000}, "value-only"),
        ({**NO_TIMESTAMPS, "pipeline.auto-watermark-interval": 200}, "tagged"),
        ({**NO_TIMESTAMPS, "pipeline.auto-watermark-interval": "0 ms"}, "value-only"),
        ({**NO_TIMESTAMPS, "pipeline.force-timestamp-support": True}, "tagged"),
        ({**NO_TIMESTAMPS, "watermark_strategy": "monotonous"}, "tagged"),
        ({**NO_TIMESTAMPS, "watermark_strategy": {"kind": "monotonous"}}, "tagged"),
        ({**NO_TIMESTAMPS, "watermark_strategy": None}, "value-only"),
        ({**NO_TIMESTAMPS, "watermark_strategy": "no_watermarks"}, "value-only"),
    ],
    ids=[
        "defaults", "none", "latency", "interval", "interval-as-text", "force", "strategy",
        "strategy-with-settings", "null-strategy", "no-watermarks",
    ],
)  # fmt: skip
def test_settings_determine_the_mode(settings: dict[str, Any], mode: str) -> None:
    """The plan uses the same function."""
    assert SerializerRunner({}).act("settings", settings) == {"mode": mode}


@pytest.mark.parametrize(
    "element",
    [
        {"record": ["x", MAX_TIMESTAMP_MS]},
        {"record": [None, None]},
        {"record": [{"a": [1.5, "ż"]}, -1]},
        {"watermark": MAX_TIMESTAMP_MS},
        {"status": "idle"},
        {"status": "active"},
        {"latency_marker": ["op", 3, 7]},
        {"backlog": False},
        {"end_of_input": True},
    ],
    ids=str,
)
def test_tagged_writes_every_element(element: dict[str, Any]) -> None:
    assert SerializerRunner({"mode": "tagged"}).act("write", element)["read"] == element


def test_refusals_have_the_words_of_the_readme() -> None:
    """Each error has its own word."""
    runner = SerializerRunner({"mode": "value-only"})

    with pytest.raises(Refused, match="only-records"):
        runner.act("write", {"status": "idle"})
    with pytest.raises(Refused, match="no-timestamp"):
        runner.act("read_timestamp_of", [1, 2])
    with pytest.raises(Refused, match="invalid-argument"):
        runner.act("write", {"watermark": 2**63})
    assert SerializerRunner({"mode": "tagged"}).act("read_timestamp_of", [1, 2]) == {"read": 2}


@pytest.mark.parametrize("element", [{}, {"record": [1]}, {"watermark": "soon"}], ids=str)
def test_unknown_element_is_an_error_of_the_file(element: dict[str, Any]) -> None:
    """It is not an expected refusal."""
    with pytest.raises(ConfigurationError, match="not a stream element"):
        SerializerRunner({}).act("write", element)
