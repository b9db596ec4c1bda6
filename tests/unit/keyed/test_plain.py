"""Plain data is read back from JSON as it was written."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flowcore.keyed.plain import encode_json, from_plain, to_plain


@given(st.integers(-(10**5000), 10**5000) | st.integers())
def test_whole_numbers_of_any_length_are_read_back(number: int) -> None:
    """Python's JSON refuses more than 4,300 digits."""
    assert from_plain(json.loads(encode_json(to_plain({"x": [number]})))) == {"x": [number]}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
        | st.characters(categories=["Cs"]) | st.dates() | st.timedeltas() | st.decimals(allow_nan=False),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    )
)  # fmt: skip
def test_plain_data_is_read_back(value: Any) -> None:
    """At any depth, also half a pair of surrogates."""
    found = from_plain(json.loads(encode_json(to_plain(value))))
    assert found == value
    assert repr(found) == repr(value)  # 1 is not 1.0 or True
