"""Whose end of input counts, by the SQL text that decides it."""

from __future__ import annotations

import pytest

from flowcore import KafkaTopic
from flowcore.spark.frame.sql import visible
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


def test_name_of_an_undeclared_channel_is_shown_without_what_a_terminal_obeys() -> None:
    """Anyone who may write to the topic chooses it, and the reason is in a header and in Spark's log."""
    topic = KafkaTopic("bids", "id BIGINT", elements="tagged", channels=("a",))

    *_, (_, reason) = refused_channels(topic, "element", "channel")

    assert visible("make_valid_utf8(substring(channel, 1, 100))") in reason
