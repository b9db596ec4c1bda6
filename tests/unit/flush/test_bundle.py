"""Bundles hold a number of elements, and every element is in one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.errors import ConfigurationError, SerializationError
from flowcore.flush.bundle import Bundle, CountBundle, Finished, add, finish, restore, snapshot

elements = st.lists(st.tuples(st.sampled_from("abc"), st.integers()), max_size=20)


def test_bundle_is_finished_by_its_last_element_whatever_its_key() -> None:
    """The next element begins another."""
    three: CountBundle = CountBundle(3)
    bundle: Bundle[str, int] = Bundle()

    assert add(three, bundle, "a", 1) == {}
    assert add(three, bundle, "b", 2) == {}
    assert add(three, bundle, "a", 3) == {"a": [1, 3], "b": [2]}
    assert bundle == Bundle(finished=1)
    assert add(three, bundle, "a", 4) == {}
    assert finish(bundle) == {"a": [4]}
    assert bundle.finished == 2


def test_bundle_that_is_empty_is_not_finished() -> None:
    """The end of the input does not count one that never began."""
    bundle: Bundle[str, int] = Bundle()

    assert finish(bundle) == {}
    assert bundle.finished == 0


def test_bundle_of_one_passes_each_element() -> None:
    """None and other empty values are elements."""
    bundle: Bundle[str, None] = Bundle()

    assert add(CountBundle(1), bundle, "a", None) == {"a": [None]}
    assert bundle.finished == 1


@pytest.mark.parametrize("count", [0, -1])
def test_bundle_refuses_a_count_that_is_not_positive(count: int) -> None:
    """It would never be finished, or always."""
    with pytest.raises(ConfigurationError, match=f"count={count} is not positive"):
        CountBundle(count)


@given(st.integers(1, 5), elements, st.frozensets(st.integers(0, 20)))
def test_bundles_hold_every_element_once_whatever_is_restarted(
    count: int, given_elements: list[tuple[str, int]], restarts: frozenset[int]
) -> None:
    """They are the input, cut after every so many elements."""
    bundle: Bundle[str, int] = Bundle()
    found: list[Finished[str, int]] = []
    for position, (key, value) in enumerate(given_elements):
        if position in restarts:
            bundle = restore(json.loads(json.dumps(snapshot(bundle))))
        found.append(add(CountBundle(count), bundle, key, value))
    found.append(finish(bundle))

    cuts = [given_elements[at : at + count] for at in range(0, len(given_elements), count)]
    expected = [{key: [v for k, v in cut if k == key] for key, _ in cut} for cut in cuts]
    assert [values for values in found if values] == expected
    assert bundle == Bundle(finished=len(cuts))


def test_bundle_snapshot_is_this_json() -> None:
    """It changes only on purpose, and with a new version."""
    bundle: Bundle[tuple[str, int], str] = Bundle(finished=4)
    add(CountBundle(3), bundle, ("a", 1), "x")
    add(CountBundle(3), bundle, ("a", 1), "y")
    written = snapshot(bundle)
    add(CountBundle(3), bundle, ("a", 1), "z")

    assert written == {
        "format": "flowcore.flush.bundle", "version": 1, "values": [[["a", 1], ["x", "y"]]], "finished": 4,
    }  # fmt: skip
    assert restore(written) == Bundle({("a", 1): ["x", "y"]}, 2, 4)


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"format": "flowcore.flush.buffer"}, {"values": None}], ids=str
)
def test_bundle_restore_refuses(change: dict[str, object]) -> None:
    """It does not begin with an empty bundle in silence."""
    with pytest.raises(SerializationError, match=r"is not one of 'flowcore\.flush\.bundle' and version 1"):
        restore(snapshot(Bundle()) | change)
