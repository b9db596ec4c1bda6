"""A schema is parsed from Spark DDL and keeps order, names and types; other text is an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.api.schema import Column, Schema
from flowcore.errors import SchemaError

TYPES = [
    "BIGINT", "DOUBLE", "STRING", "BOOLEAN", "DATE", "TIMESTAMP_NTZ", "BINARY", "DECIMAL(10, 2)",
    "ARRAY<STRING>", "MAP<STRING, INT>", "STRUCT<x: INT, y: ARRAY<DOUBLE>>",
]  # fmt: skip

columns = st.builds(
    Column, st.text("abcxyzé_0 .-", min_size=1, max_size=8).filter(str.strip),
    st.sampled_from(TYPES), st.booleans(),
)  # fmt: skip


@given(st.lists(columns, min_size=1, max_size=6, unique_by=lambda column: column.name.lower()))
def test_schema_round_trips_through_its_ddl(found: list[Column]) -> None:
    """Names (backquoted), types and nullability are unchanged."""
    schema = Schema(tuple(found))

    assert Schema.parse(schema.ddl) == schema


@pytest.mark.parametrize(
    "word",
    ["date", "timestamp", "order", "key", "value", "desc", "end", "user", "set", "topic", "offset"],
)
def test_schema_accepts_sql_keywords_as_names(word: str) -> None:
    """Data and Kafka have columns named like SQL keywords."""
    assert Schema.parse(f"{word} STRING").names == (word,)


@pytest.mark.parametrize(
    ("written", "read"),
    [("long", "BIGINT"), ("integer", "INT"), ("byte", "TINYINT"), ("struct<b int>", "STRUCT<b: INT>")],
)
def test_schema_accepts_other_spellings_of_spark(written: str, read: str) -> None:
    """Spark's aliases of a type, and a struct without colons, mean the same type."""
    assert Schema.parse(f"a {written}").columns == (Column("a", read),)


def test_schema_keeps_not_null() -> None:
    """Only NOT NULL makes a column required."""
    schema = Schema.parse("a INT NOT NULL, b INT NULL, c INT COMMENT 'not null'")

    assert [column.nullable for column in schema.columns] == [False, True, True]


def test_parsed_schema_is_accepted() -> None:
    """Parsing a schema returns it."""
    schema = Schema.parse("a INT")

    assert Schema.parse(schema) is schema


@pytest.mark.parametrize(
    "ddl",
    [
        "",
        "a",
        "a INT b",
        "a wrongtype",
        "a: INT",
        "a INT; DROP TABLE x",
        "PRIMARY KEY (a)",
        "a INT) AS SELECT (1",
        "a INT) USING csv --",
    ],
)
def test_schema_refuses_text_that_is_not_a_list_of_columns(ddl: str) -> None:
    """The message has the given text, without the colours of sqlglot."""
    with pytest.raises(SchemaError) as caught:
        Schema.parse(ddl)

    assert f"schema {ddl!r}" in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("ddl", "reason"),
    [
        ("id STRNG, price DOUBLE", "'STRNG' is not expected after 'id'"),
        ("id INT price DOUBLE", "'price' is not expected after 'id INT'"),
        ("id INT, tags ARRAY<STRNG>", "'STRNG' is not expected after 'id INT, tags ARRAY<'"),
        ({"id": "INT"}, "it is a dict, not text"),
    ],
)
def test_schema_names_the_word_that_is_wrong(ddl: str, reason: str) -> None:
    """Not its place in the statement that flowcore makes of the text."""
    with pytest.raises(SchemaError) as caught:
        Schema.parse(ddl)

    assert str(caught.value).startswith(f"schema {ddl!r} cannot be read as Spark DDL ({reason}): ")
    assert "Line 1" not in str(caught.value)


@pytest.mark.parametrize(
    "kind",
    [
        "TIME", "INT8", "BIT", "JSON", "UINT", "INT UNSIGNED", "INET", "ENUM('a')", "INT[]", "ARRAY<TIME>",
        "STRING COLLATE UTF8_LCASE", "INT DEFAULT 3", "INT PRIMARY KEY", "INT CHECK (a > 1)", "NULL",
        "ARRAY", "MAP<STRING>", "ARRAY<INT, INT>", "STRUCT", "STRUCT<INT>", "STRUCT<a: INT8>", "VARCHAR",
        "STRING(5)", "TIMESTAMP(3)", "DECIMAL(50, 2)", "DECIMAL(3, 5)", "DECIMAL(0)", "DECIMAL(3, 1, 1)",
    ],
)  # fmt: skip
def test_schema_refuses_what_spark_would_not_have(kind: str) -> None:
    """Nothing of a schema is changed or dropped without a word."""
    with pytest.raises(SchemaError, match="cannot be read as Spark DDL"):
        Schema.parse(f"id BIGINT, a {kind}")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("NUMERIC", "DECIMAL"), ("DEC(38, 38)", "DECIMAL(38, 38)"), ("short", "SMALLINT"), ("real", "FLOAT"),
        ("TIMESTAMP_LTZ", "TIMESTAMP_LTZ"), ("CHARACTER(3)", "CHAR(3)"), ("VARIANT", "VARIANT"),
        ("INTERVAL DAY TO SECOND", "INTERVAL DAY TO SECOND"), ("INT COMMENT 'a time'", "INT"),
        ("map<string, array<int>>", "MAP<STRING, ARRAY<INT>>"),
        ("STRUCT<time: INT, `int8` DATE>", "STRUCT<time: INT, `int8`: DATE>"),
    ],
)  # fmt: skip
def test_schema_reads_the_types_of_spark(written: str, read: str) -> None:
    """Names of columns and fields may be words of other types."""
    assert Schema.parse(f"bit {written}, b INT NOT NULL").columns[0].type == read


def test_schema_refuses_a_name_twice() -> None:
    """Spark compares names without case."""
    with pytest.raises(SchemaError, match="names price twice"):
        Schema.parse("price INT, Price DOUBLE")
