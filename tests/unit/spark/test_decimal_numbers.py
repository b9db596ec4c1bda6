"""Texts beside a DECIMAL in an array, a map or a struct, as the pattern of `decimal_numbers` finds them."""

from __future__ import annotations

import re

import pytest

from flowcore.spark.topics.formats.decimal_numbers import OTHER_TEXT


@pytest.mark.parametrize(
    ("shown", "kept"),
    [
        ('{"price":1.5,"hash":"a3e123456789"}', '{""1.5,""""}'),
        ('{"1e12345":2}', '{""2}'),
        (r'["a\"1e12345","\\",1]', '["","",1]'),
        ('["1e12345","-Infinity","1,5e+03",""]', '["1e12345","-Infinity","1,5e+03",""]'),
        ('{"x":["123",{"n":1e100000}]}', '{""["123",{""1e100000}]}'),
        (f'["{"x" * 1_000_000}"]', '[""]'),
    ],
)
def test_only_texts_that_may_be_numbers_are_kept(shown: str, kept: str) -> None:
    """Numbers outside of texts stay; Java's class of digits has another name in Python."""
    pattern = re.compile(OTHER_TEXT.replace(r"\p{Nd}", r"\d"))

    found = pattern.sub(lambda text: f'"{text[1] or ""}"', shown)

    assert found == kept
