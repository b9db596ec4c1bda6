"""The patterns by which texts are told from numbers too long for a DECIMAL, which Java has, too."""

from __future__ import annotations

import re

import pytest
import sqlglot
from sqlglot import exp

from flowcore.api.schema import Column
from flowcore.spark.topics.formats.decimal_numbers import OTHER_TEXT
from flowcore.spark.topics.row_keys import RowKey


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


LONG_KEYS = ["1e-100000000", "12.34E99999", "-1.e+123456", "5" * 1_001]


@pytest.mark.parametrize("key", ["12.34", "-1.5e3", "1E+9999", *LONG_KEYS])
def test_key_with_a_long_exponent_is_not_cast(key: str) -> None:
    """Spark fails fast for a large number, and writes out all digits of a small one."""
    tree = sqlglot.parse_one(f"SELECT {RowKey([Column('id', 'DECIMAL(10, 2)')]).parse()}", dialect="spark")

    patterns = [each.expression.name.replace(r"\p{Nd}", r"\d") for each in tree.find_all(exp.RegexpLike)]

    assert [re.search(each, key) is not None for each in patterns] == [key in LONG_KEYS]
