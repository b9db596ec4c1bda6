"""A signature proves that the writer of a control element had the key, for one place and one element."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore import Flow, KafkaTopic, monotonous
from flowcore.errors import ConfigurationError
from flowcore.planner import plan_flow
from flowcore.settings import Settings, secret_keys
from flowcore.signatures import is_signed, require_control_key, sign

KEY = b"a secret of two flows"
places = st.fixed_dictionaries(
    {
        "topic": st.text(max_size=3),
        "partition": st.integers(0, 3),
        "channel": st.binary(max_size=3),
        "element": st.binary(max_size=3),
    }
)


@given(places, places)
def test_signature_is_valid_for_its_place_and_element_only(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    """No byte can move from the topic to the channel or from there to the element."""
    signature = sign(KEY, **one)

    assert is_signed(signature, KEY, **other) is (one == other)


@given(places, st.binary(max_size=40))
def test_signature_needs_the_key(place: dict[str, Any], guess: bytes) -> None:
    """Neither another key nor other bytes are valid, of any length."""
    assert not is_signed(sign(b"another key", **place), KEY, **place)
    assert is_signed(guess, KEY, **place) is (guess == sign(KEY, **place))


def test_signature_is_the_same_in_every_version() -> None:
    """Two flows with different versions of flowcore understand each other."""
    signature = sign(KEY, "bids", 3, b"sales/bids", b"\x06")

    assert signature.hex() == "4b1b9ed5b4060e89a5abd2556f34412e4b72fc6ba375a4dd0c9c37693a0c0be8"


@pytest.mark.parametrize(
    ("key", "problem"),
    [(None, "is not set"), ("short", "has 5 bytes, which can be guessed")],
    ids=["none", "short"],
)
def test_signed_topic_needs_a_key(key: str | None, problem: str) -> None:
    """The error says where the key comes from, and does not show it."""
    settings = Settings(control_key=key)

    with pytest.raises(ConfigurationError, match=rf"topic 'bids' .*kafka.control-key {problem}") as raised:
        require_control_key(settings, ["bids"])
    assert "FLOWCORE_KAFKA_CONTROL_KEY" in str(raised.value)
    assert require_control_key(settings, []) is None


def test_key_is_a_secret() -> None:
    """It comes from the environment, and is not shown; tests of secrets cover what holds for all of them."""
    settings = Settings.of(environment={"FLOWCORE_KAFKA_CONTROL_KEY": KEY.decode()})

    assert require_control_key(settings, ["bids"]) == KEY
    assert KEY.decode() not in repr(settings)
    assert "kafka.control-key" in secret_keys()


def test_only_tagged_topics_are_signed() -> None:
    """Others have no control elements."""
    with pytest.raises(ConfigurationError, match=r"signed=True of topic 'bids' with elements='plain'"):
        KafkaTopic("bids", schema="id BIGINT", signed=True)


def test_signed_source_runs_in_micro_batches() -> None:
    """Signatures are checked in Python; the plan says so."""
    flow = Flow("f")
    topic = KafkaTopic("bids", "id BIGINT", elements="tagged", signed=True, watermark=monotonous())
    flow.read("bids", topic).write("out", KafkaTopic("out"))

    text = plan_flow(flow).explain()

    assert "query bids (micro-batch" in text or "query bids-batches (micro-batch" in text
    assert "signatures of bids are checked in Python" in text
    assert "signed control elements only" in text
