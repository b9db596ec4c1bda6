"""Bundles hold a number of elements, and every element is in one."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.errors import ConfigurationError
from flowcore.testing.transcripts.bundle import Bundle, Finished

elements = st.lists(st.tuples(st.sampled_from("abc"), st.integers()), max_size=20)


def test_bundle_is_finished_by_its_last_element_whatever_its_key() -> None:
    """The next element starts another bundle."""
    bundle: Bundle[str, int] = Bundle(3)

    assert bundle.add("a", 1) == {}
    assert bundle.add("b", 2) == {}
    assert bundle.add("a", 3) == {"a": [1, 3], "b": [2]}
    assert bundle == Bundle(3, finished=1)
    assert bundle.add("a", 4) == {}
    assert bundle.finish() == {"a": [4]}
    assert bundle.finished == 2


def test_bundle_that_is_empty_is_not_finished() -> None:
    """The end of the input does not finish a bundle that has no element."""
    bundle: Bundle[str, int] = Bundle(2)

    assert bundle.finish() == {}
    assert bundle.finished == 0


def test_bundle_of_one_passes_each_element() -> None:
    """None and other empty values are elements."""
    bundle: Bundle[str, None] = Bundle(1)

    assert bundle.add("a", None) == {"a": [None]}
    assert bundle.finished == 1


@pytest.mark.parametrize("count", [0, -1])
def test_bundle_refuses_a_count_that_is_not_positive(count: int) -> None:
    """Such a bundle would never or always be finished."""
    with pytest.raises(ConfigurationError, match=f"count={count} is not positive"):
        Bundle(count)


@given(st.integers(1, 5), elements, st.frozensets(st.integers(0, 20)))
def test_bundles_hold_every_element_once_whatever_is_restarted(
    count: int, given_elements: list[tuple[str, int]], restarts: frozenset[int]
) -> None:
    """They are the input, cut after every so many elements."""
    bundle: Bundle[str, int] = Bundle(count)
    found: list[Finished[str, int]] = []
    for position, (key, value) in enumerate(given_elements):
        if position in restarts:
            bundle = Bundle(**json.loads(json.dumps(asdict(bundle))))
        found.append(bundle.add(key, value))
    found.append(bundle.finish())

    cuts = [given_elements[at : at + count] for at in range(0, len(given_elements), count)]
    expected = [{key: [v for k, v in cut if k == key] for key, _ in cut} for cut in cuts]
    assert [values for values in found if values] == expected
    assert bundle == Bundle(count, finished=len(cuts))
