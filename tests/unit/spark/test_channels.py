"""Whose end of input counts, by the SQL text that decides it."""

from __future__ import annotations

import pytest

from flowcore import KafkaTopic
from flowcore.spark.topics.channels import refused_channels
from flowcore.spark.topics.elements import is_end


@pytest.mark.parametrize(
    ("own", "refused"),
    [
        (None, is_end("element")),
        ("f/", f"{is_end('element')} AND NOT startswith(coalesce(channel, ''), 'f/')"),
    ],
    ids=["any-topic", "cut"],
)
def test_end_that_a_flow_writes_crosses_its_cut(own: str | None, refused: str) -> None:
    """Nobody declares the channels of a cut; without this, windows after it would never end."""
    topic = KafkaTopic("cut", "id BIGINT", elements="tagged")

    conditions = [condition for condition, _ in refused_channels(topic, "element", "channel", own)]

    assert conditions[-1] == refused
