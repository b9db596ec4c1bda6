"""Connectors are plain values."""

from __future__ import annotations

from flowcore import KafkaTopic


def test_topics_with_offsets_can_be_keys_of_a_mapping() -> None:
    """Equal topics are one key, also with a dict of offsets."""
    first = KafkaTopic("bids", schema="id BIGINT", start={0: 5}, until={0: 9}, format_options={})
    same = KafkaTopic("bids", schema="id BIGINT", start={0: 5}, until={0: 9}, format_options={})
    other = KafkaTopic("bids", schema="id BIGINT", start={0: 6}, until={0: 9}, format_options={})

    assert len({first, same, other}) == 2
