"""Plain data is read back from JSON as it was written."""

import json

from hypothesis import given
from hypothesis import strategies as st

from flowcore.keyed.plain import from_plain, to_plain


@given(st.integers(-(10**5000), 10**5000) | st.integers())
def test_whole_numbers_of_any_length_are_read_back(number: int) -> None:
    """Python's JSON refuses more than 4,300 digits."""
    assert from_plain(json.loads(json.dumps(to_plain({"x": [number]})))) == {"x": [number]}
