"""Messages that replace earlier ones of their Kafka key, as rows of a live query and of a table."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from flowcore import Flow, KafkaTopic
from flowcore.api.operators import Read
from flowcore.settings import Settings
from flowcore.spark.frame.branches import Branch
from flowcore.spark.frame.rows import BAD_REASON, BRANCH, FIRST_BRANCH, RowKind
from flowcore.spark.frame.sql import quote
from flowcore.spark.run.session import live_session
from flowcore.spark.topics.incoming import Incoming
from flowcore.spark.topics.messages import kafka_key
from flowcore.spark.topics.side_channels import SideChannels

pytestmark = pytest.mark.spark

Message = tuple[bytes | None, bytes | None]
_MESSAGES = "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY"
_SHOPS = "shop STRING NOT NULL, total DOUBLE NOT NULL"


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    """A session with the configuration of live queries."""
    return live_session(spark, Settings.of({}, environment={}))


def source(schema: str, by: Any, **options: Any) -> tuple[Read, KafkaTopic]:
    topic = KafkaTopic("shops", schema, updating_by=by, **options)
    node = Flow("f").read("shops", topic).operator
    assert isinstance(node, Read)
    return node, topic


def messages(session: SparkSession, sent: list[Message]) -> DataFrame:
    at = datetime(2026, 3, 1, tzinfo=UTC)
    rows = [("shops", 0, offset, at, *each) for offset, each in enumerate(sent)]
    return session.createDataFrame(rows, _MESSAGES)


def read_live(session: SparkSession, sent: list[Message], schema: str, by: Any) -> Iterator[Any]:
    """For each message, the row that a live query reads, or why the message is bad."""
    node, topic = source(schema, by)
    branch = Branch(FIRST_BRANCH, {name: f"c{place}" for place, name in enumerate(node.columns)})
    incoming = Incoming(node, topic, SideChannels(), keeps_bad=True, has_ordinals=False)
    frame = incoming.read(messages(session, sent), branch, (f"x{each}" for each in count())).frame
    for row in frame.orderBy("offset").collect():
        is_bad = row[BRANCH] == RowKind.BAD
        yield row[BAD_REASON] if is_bad else tuple(row[name] for name in branch.columns.values())


def test_a_message_without_a_value_deletes_the_row_of_its_key(session: SparkSession) -> None:
    """Its key says which; columns that must have a value have none."""
    sent: list[Message] = [(b"a", b'{"shop": "a", "total": 1.5}'), (b"a", None), (b"", None)]

    assert [*read_live(session, sent, _SHOPS, "shop")] == [
        ("a", 1.5, False),
        ("a", None, True),
        ("", None, True),
    ]


def test_a_value_may_lack_the_columns_of_its_key(session: SparkSession) -> None:
    """As in topics of which the key is not repeated in the value."""
    sent: list[Message] = [
        (b"a", b'{"total": 1.5}'),
        (b'{"shop":"a","day":7}', b'{"total": 1}'),
        (b'{"day":7}', None),
        (b' {"day": -7, "shop": "5"} ', None),
    ]

    assert [*read_live(session, sent[:1], _SHOPS, "shop")] == [("a", 1.5, False)]
    by = ("shop", "day")
    assert [*read_live(session, sent[1:], "day INT, shop STRING, total DOUBLE", by)] == [
        (7, "a", 1.0, False),
        (7, None, None, True),
        (-7, "5", None, True),
    ]


_NUMBERS = "a INT, b INT"
_BOTH = "which is not a JSON object of a INT, b INT"
_BAD: dict[tuple[str, Any], list[tuple[Message, str]]] = {
    (_SHOPS, "shop"): [
        ((None, b'{"shop": "a", "total": 1}'), "has no key, and its shop says"),
        ((None, None), "has no key"),
        ((b"\xff", None), "has the key bytes FF, which is not the text of shop STRING"),
        ((b"b", b'{"shop": "a", "total": 1}'), "value shop = a, and in its key b"),
        ((b"a", b'{"shop": "a"}'), "field 'total' is missing"),
        ((b"a", b"null"), "does not fit"),
        ((b"a", b""), "does not fit"),
    ],
    ("id BIGINT, n INT", "id"): [
        ((b"x", None), "has the key x, which is not the text of id BIGINT"),
        ((b"1.5", b'{"id": 1}'), "has the key 1.5, which"),
        (("1\x1b[2J\u202e\n".encode(), None), "has the key 1 [2J , which"),
    ],
    (_NUMBERS, ("a", "b")): [
        ((b'{"a":1,"c":2}', None), _BOTH),
        ((b'{"a":1', None), _BOTH),
        ((b'{"a":"x"}', None), _BOTH),
        ((b"[]", None), _BOTH),
        ((b"", None), _BOTH),
        ((b'{"a":1}', b'{"a":1,"b":2}'), "value b = 2, and in its key null"),
        ((b'{"a":1,"b":2} x', None), _BOTH),
        ((b'{"a":1}{"b":2}', None), _BOTH),
        ((b"{'a':1,'b':2}", None), _BOTH),
    ],
    ("a TINYINT, b STRING, c DOUBLE", ("a", "b", "c")): [
        ((b'{"a":200,"b":"x"}', None), "which is not a JSON object of a TINYINT"),
        ((b'{"a":1,"b":5}', None), "which is not a JSON object of a TINYINT"),
        ((b'{"a":1,"b":true}', None), "which is not a JSON object of a TINYINT"),
        ((b'{"a":1,"b":{"x":1}}', None), "which is not a JSON object of a TINYINT"),
        ((b'{"a":1,"b":"x","c":NaN}', None), "which is not a JSON object of a TINYINT"),
    ],
    ("a INT NOT NULL, b INT", ("a", "b")): [((b"{}", None), _BOTH)],
    ("at TIMESTAMP, n INT", "at"): [((b"12:30", None), "has the key 12:30, which is not the text of at")],
    ("day DATE, n INT", "day"): [
        ((b"2026-03-01T12:30", None), "has the key 2026-03-01T12:30, which is"),
        ((b"2026-03-1T", None), "has the key 2026-03-1T, which is not the text of day DATE"),
        ((b"2026", None), "has the key 2026, which is not the text of day DATE"),
    ],
    ("at TIMESTAMP, day DATE, n INT", ("at", "day")): [
        ((b'{"day":"2026-03-01T12:30"}', None), "which is not a JSON object of at TIMESTAMP"),
        ((b'{"at":18446744073710}', None), "which is not a JSON object of at TIMESTAMP"),
        ((b'{"at":"12:30"}', None), "which is not a JSON object of at TIMESTAMP"),
        ((b'{"day":"5"}', None), "which is not a JSON object of at TIMESTAMP"),
    ],
}


@pytest.mark.parametrize(("declared", "cases"), _BAD.items())
def test_a_message_is_bad_if_it_is_not_known_which_row_it_is_about(
    session: SparkSession, declared: tuple[str, Any], cases: list[tuple[Message, str]]
) -> None:
    """It becomes a dead letter that says so, and replaces nothing."""
    found = [*read_live(session, [message for message, _ in cases], *declared)]

    for reason, (message, why) in zip(found, cases, strict=True):
        assert isinstance(reason, str), message
        assert why in reason


_KEYS: dict[str, Any] = {
    "STRING": 'ż "\n',
    "BIGINT": -(2**63),
    "DOUBLE": 0.1,
    "DECIMAL(9, 2)": Decimal("-1.50"),
    "BOOLEAN": True,
    "BINARY": b"\xff\x00",
    "DATE": date(2026, 3, 1),
    "TIMESTAMP": datetime(2026, 3, 1, 12, 0, 0, 123456),  # noqa: DTZ001 - as Spark returns it
    "TIMESTAMP_NTZ": datetime(2026, 3, 1, 12, 0, 0, 123456),  # noqa: DTZ001 - it has no zone
    "INT": None,
}


def test_a_key_that_a_sink_wrote_is_read_again(session: SparkSession) -> None:
    """Of one column of each type, and of all of them, of which one is null."""
    names = {f"k{place}": kind for place, kind in enumerate(_KEYS)}
    schema = ", ".join(f"{name} {kind}" for name, kind in names.items())
    columns = {name: quote(name) for name in names}
    keys = [kafka_key(by, columns) for by in (*((name,) for name in names), tuple(names))]
    row = session.createDataFrame([tuple(_KEYS.values())], schema)
    (written,) = row.selectExpr(*(f"CAST({key} AS BINARY) AS b{n}" for n, key in enumerate(keys))).collect()

    (found,) = read_live(session, [(bytes(written[-1]), None)], f"{schema}, n INT", tuple(names))
    assert found == (*_KEYS.values(), None, True)
    for (name, kind), value, key in zip(names.items(), _KEYS.values(), written[:-1], strict=True):
        if value is not None:
            (found,) = read_live(session, [(bytes(key), None)], f"{name} {kind}, n INT", name)
            assert found == (value, None, True)


def test_a_table_has_the_last_row_of_each_key(session: SparkSession) -> None:
    """Without the keys that are deleted in the end, and without messages that are bad."""
    sent: list[Message] = [
        (b"a", b'{"total": 1}'), (b"b", b'{"total": 2}'), (b"a", b'{"total": 3}'), (b"b", None),
        (b"c", None), (b"c", b'{"total": 4}'), (b"a", b'{"total": "x"}'),
    ]  # fmt: skip
    node, topic = source(_SHOPS, "shop", until="latest")
    assert node.columns == ("shop", "total")
    assert not node.updating
    good, bad = Incoming.bounded(node, topic).split(messages(session, sent))

    assert sorted(map(tuple, good.collect())) == [("a", 3.0), ("c", 4.0)]
    assert bad is not None
    assert [row.offset for row in bad.collect()] == [6]
