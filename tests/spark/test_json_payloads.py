"""Spark reads the JSON objects that the Python format reads, although its own reader accepts more."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from flowcore import Flow, KafkaTopic
from flowcore.api.operators import Read
from flowcore.api.schema import Schema
from flowcore.errors import SerializationError
from flowcore.serializers.formats import JsonFormat
from flowcore.serializers.formats.json_arrow import JsonArrowFormat
from flowcore.settings import Settings
from flowcore.spark.frame.sql import quote
from flowcore.spark.run.session import live_session
from flowcore.spark.topics.values import RECORD, describe_misfit, is_bad_record, parse_value

pytestmark = pytest.mark.spark

SCHEMA = "id BIGINT NOT NULL, s STRING, d DOUBLE, f FLOAT, `it's` STRING, t TINYINT"
GOOD = [
    *r"""
{"id":1}
{"id":1,"s":"}"}
{"id":1,"s":"} x}"}
{"id":1,"z":{"a":[{}]}}
{"id":1,"s":"5"}
{"id":1,"s":"-5.5e-7"}
{"id":1,"s":"true"}
{"id":1,"s": "5"}
{"id":1,"s"  :  "5"}
{"id":1,"s":"\u0035"}
{"id":1,"s":"5","z":{}}
{"id":1,"s":"[1]"}
{"id":1,"s":"{\"a\":1}"}
{"id":1,"s":"NaN"}
{"id":1,"s":"\"NaN\""}
{"id":1,"s":"2026-01-01"}
{"id":1,"s":""}
{"id":1,"s":null,"d":null}
{"id":1,"it's":"5"}
{"id":1,"s":1,"s":"1"}
{"id":null,"id":1}
{"id":2,"id":1}
{"id":1,"d":null,"d":2}
{"id":1,"z":NaN}
{"id":1,"z":[-Infinity]}
{"id":1,"d":5}
{"id":1,"t":127}
{"id":1,"t": -128}
{"id":1,"t":-56}
{"id":1,"d":"NaN"}
{"id":1,"d":"Infinity"}
{"id":1,"d":"-Infinity"}
{"id":1,"f":"Infinity"}
{"id":1,"d":1.7976931348623157e308}
{"id":1,"s":"]","z":{}}
""".strip("\n").splitlines(),
    '{"id":1} ',
    ' {"id":1}\r\n',
    '{"id":1,"z":[{}]} ',
    f'{{"id":1,"z":{"9" * 1_000}}}',
    f'{{"id":1,"z":-{"9" * 500}.{"9" * 498}e-10}}',
    f'{{"id":1,"z":{"[" * 499}{"]" * 499}}}',
    f'{{"id":1,"s":"{"9" * 1_001}{"[" * 501}"}}',
]
BAD = [
    *r"""
{"id":1} {"id":2}
{"id":1}{"id":2}
{"id":1},{"id":2}
{"id":1}:{}
{"id":1} x}
{"id":1}}
{"id":1}]}
{"id":1}] x}
{"id":1},2] x}
{"id":1},0] x}
{"id":1},0],0] x}
{"id":1,"z":{}} {}
/**/{"id":1}
{'id':1}
{"id":1,"s":'x'}
{id:1}
{"id":1,"s":5}
{"id":1,"s":-5.5e-7}
{"id":1,"s":true}
{"id":1,"s":false}
{"id":1,"s":[1]}
{"id":1,"s":[]}
{"id":1,"s":{"a":1}}
{"id":1,"s":{"a":1,"a":2}}
{"id":1,"s":{}}
{"id":1,"s":NaN}
{"id":1,"s":-Infinity}
{"id":1,"s":"1","it's":1}
{"id":1,"s":1,"z":{"s":"1"}}
{"id":1,"s":1,"z":"\"s\":\"1\""}
{"id":1,"s": 1,"it's": "1"}
{"id":1,"it's":5}
{"id":1,"d":NaN}
{"id":1,"d":Infinity}
{"id":1,"d":-Infinity}
{"id":1,"d":"INF"}
{"id":1,"d":1e999}
{"id":1,"f":1e39}
{"id":1,"t":128}
{"id":1,"t": 200}
{"id":1,"t":255}
{"id":1,"t":256}
{"id":1,"t":-129}
{"id":1,"d":01}
{"id":1,"d":+1}
{"id":1,"d":.5}
{"id":1,"d":"5"}
{"id":"x","id":1}
{"id":1,"id":1.5}
{"id":1.5,"id":1}
{"id":1,"d":"x","d":2}
{"id":1,"id":null}
""".strip("\n").splitlines(),
    '{"id":1}\n{"id":2}',
    '{"id":1}\x00',
    '{"id":1}\x00}',
    '\ufeff{"id":1}',
    f'{{"id":1,"z":{"9" * 1_001}}}',
    f'{{"id":1,"z":-{"9" * 500}.{"9" * 499}e-10}}',
    f'{{"id":1,"d":{"9" * 1_001}}}',
    f'{{"id":1,"z":{"[" * 500}{"]" * 500}}}',
    f'{{"id":1,"z":{"[" * 900}{"]" * 900}}}',
]


def test_json_is_read_by_spark_as_by_python(spark: SparkSession) -> None:
    """Good payloads become the same row, bad payloads are bad in both."""
    columns = Schema.parse(SCHEMA).columns
    python = JsonFormat.of(columns)
    read = Flow("f").read("r", KafkaTopic("t", SCHEMA)).operator
    assert isinstance(read, Read)
    fields = [f"{RECORD}.{quote(column.name)}" for column in columns]
    live = live_session(spark, Settings.of({}, environment={}))
    frame = live.createDataFrame([(text.encode(),) for text in (*GOOD, *BAD)], "value BINARY")
    frame = frame.selectExpr("value", parse_value(read)).selectExpr(
        "value", f"{is_bad_record(read)} AS bad", *fields
    )

    found = {bytes(row.value): None if row.bad else row[2:] for row in frame.collect()}

    assert [text for text in GOOD if found[text.encode()] is None] == []
    assert [text for text in BAD if found[text.encode()] is not None] == []
    for text in GOOD:
        assert str(found[text.encode()]) == str(tuple(python.decode(text.encode()).values())), text
    for text in BAD:
        with pytest.raises(SerializationError):
            python.decode(text.encode())
    arrow = JsonArrowFormat(JsonFormat.of(column for column in columns if column.type != "FLOAT"))
    good, bad = ([text.encode() for text in texts if '"f"' not in text] for texts in (GOOD, BAD))
    _, is_value = arrow.read(pa.array([*good, *bad]))
    assert is_value.tolist() == [True] * len(good) + [False] * len(bad)


DECIMALS = "p DECIMAL(10,2), q ARRAY<DECIMAL(10,2)>, s STRING, t STRUCT<d: DECIMAL(10,2), s: STRING>"
EXACT: dict[str, Decimal | None] = {
    '{"p":12.34}': Decimal("12.34"),
    '{"p":"12.34"}': Decimal("12.34"),
    '{"p":1.5e3}': Decimal("1500.00"),
    '{"p":"1,5e+03"}': Decimal("15000.00"),
    '{"p":1e-9999}': Decimal("0.00"),
    '{"p":12.34,"s":"a3e123456789"}': Decimal("12.34"),
    '{"p":12345678.12,"q":[1,0.0,"2.5",1.5e3],"s":"\\u0031"}': Decimal("12345678.12"),
    '{"p":1.5e3,"q":["\u0663"],"s":"\\u0031 \u0663"}': Decimal("1500.00"),
    '{"p":"12.34","s":"' + "5" * 2_000 + '"}': Decimal("12.34"),
    '{"s":"1e99999999"}': None,
    '{"p":1,"t":{"d":1.5,"s":"a3e123456789"}}': Decimal("1.00"),
    '{"p":1,"t":{"d":"2.5","s":"\\u0031 0.0"}}': Decimal("1.00"),
    '{"p":1,"t":{"d":2.5,"s":"0.0"},"s":"\\u0031"}': Decimal("1.00"),
    '{"p":1,"t":{"d":2.5,"s":"' + "a3e123456" * 2_000 + '\\\\"}}': Decimal("1.00"),
}
HOSTILE = [
    '{"p":%s}', '{"p":"%s"}', '{"p":-%s}', '{"p":1,"p":%s}', '{"p":%s,"p":1}', '[{"p":1},{"p":%s}]',
    '{"t":{"d":%s,"s":"x"}}', '{"t":{"s":"\\"","d":%s}}', '{"t":{"s":"x","d":"%s"}}',
    '{"q":[1,%s]}', '{"q":["%s"]}', '{"q":[1],"q":[%s]}', '{"p":1,"q":[0,%s],"s":"x"}',
]  # fmt: skip
TOO_LONG = ["1e999999999", "1.0E-999999999", "1e+999999999"]
AS_TEXT = ["1\\u0065999999999", "1e9,9,9,9,9,9,9,9", "1e-\u0669" + "\u0669" * 8, "9" * 1_000_000]


def test_number_that_would_be_written_out_for_hours_is_a_bad_record(spark: SparkSession) -> None:
    """A few bytes with a long exponent, in any notation; the task ends, and other numbers are exact."""
    read = Flow("f").read("r", KafkaTopic("t", DECIMALS)).operator
    assert isinstance(read, Read)
    hostile = [each % number for each in HOSTILE for number in TOO_LONG]
    hostile += [each % text for each in HOSTILE if '"%s"' in each for text in AS_TEXT]
    live = live_session(spark, Settings.of({}, environment={}))
    frame = live.createDataFrame([(text.encode(),) for text in (*EXACT, *hostile)], "value BINARY")
    frame = frame.selectExpr("value", parse_value(read)).selectExpr(
        "value", f"{is_bad_record(read)} AS bad", f"{describe_misfit(read)} AS why", f"{RECORD}.p"
    )

    found = {bytes(row.value).decode(): row for row in frame.collect()}

    assert {text: found[text].p for text in EXACT} == EXACT
    assert not any(found[text].bad for text in EXACT)
    assert [text[:80] for text in hostile if not found[text].bad] == []
    assert [text[:80] for text in hostile if len(found[text].why) < 20] == []
    assert found['{"p":1e999999999}'].why == ": field 'p' holds Infinity, which is not DECIMAL(10, 2)"


TIMES = (
    "at TIMESTAMP, day DATE, more ARRAY<STRUCT<`at`: TIMESTAMP, n: BIGINT>>, s STRING, "
    "days MAP<STRING, ARRAY<DATE>>, one STRUCT<day: DATE>"
)
MOMENTS = [
    '{"at":5}', '{"at":-5}', '{"at":1792000000}', '{"at":"2026-03-01T12:30:00Z"}',
    '{"at":"2026-03-01 12:30:00"}', '{"day":"2026-03-01"}',
    '{"at":5,"s":"12:30","more":[{"at":6,"n":18446744073710}]}', '{"s":"T12:30:00"}',
    '{"at":null,"s":"\\u0031"}', '{"more":[]}',
    '{"day":"202\\u0036-03-01","s":"2026-03-01Tnonsense","days":{"a":["2026-03-01",null]}}',
]  # fmt: skip
OTHERS = {
    '{"at":18446744073710}': "field 'at' holds 18446744073710, which is not TIMESTAMP",
    '{"at":-18446744073710}': "field 'at' holds -18446744073710, which is not TIMESTAMP",
    '{"at":9223372036855}': "field 'at' holds 9223372036855, which is not TIMESTAMP",
    '{"at":"12:30:00"}': "field 'at' holds 12:30:00, which is not TIMESTAMP",
    '{"at":" 1:30"}': "field 'at' holds  1:30, which is not TIMESTAMP",
    '{"at":"T12:30:00"}': "field 'at' holds T12:30:00, which is not TIMESTAMP",
    '{"at":"\\u0031\\u0032:30:00"}': "field 'at' holds 12:30:00, which is not TIMESTAMP",
    '{"more":[{"at":1},{"at":18446744073710}]}': "field 'more' holds [{1, null}, {18446744073710, null}]",
    '{"more":[{"at":"\\t12:30","n":1}]}': "field 'more' holds [{ 12:30, 1}]",
    '{"day":"5"}': "field 'day' holds 5, which is not DATE",
    '{"day":"2026-03-01Tnonsense"}': "field 'day' holds 2026-03-01Tnonsense, which is not DATE",
    '{"day":"2026-03-01 23:30:00-05:00"}': "field 'day' holds 2026-03-01 23:30:00-05:00, which is not DATE",
    '{"day":"2026"}': "field 'day' holds 2026, which is not DATE",
    '{"day":"2026-03"}': "field 'day' holds 2026-03, which is not DATE",
    '{"day":"2026-3-1"}': "field 'day' holds 2026-3-1, which is not DATE",
    '{"day":" 2026-03-01"}': "field 'day' holds  2026-03-01, which is not DATE",
    '{"day":"2026-02-30"}': "field 'day' holds 2026-02-30, which is not DATE",
    '{"days":{"a":["2026-03-01","2026"]}}': "field 'days' holds ",
    '{"one":{"day":"2026-03-01T00:00:00Z"}}': "field 'one' holds ",
    '{"s":{"a":1,"a":2}}': """field 's' holds {"a":1,"a":2}, which is not STRING""",
}


def test_value_that_spark_reads_as_another_time_is_a_bad_record(spark: SparkSession) -> None:
    """A number of seconds that overflows, a time of today, a number of days; and a text that is an object."""
    read = Flow("f").read("r", KafkaTopic("t", TIMES)).operator
    assert isinstance(read, Read)
    live = live_session(spark, Settings.of({}, environment={}))
    frame = live.createDataFrame([(text.encode(),) for text in (*MOMENTS, *OTHERS)], "value BINARY")
    frame = frame.selectExpr("value", parse_value(read)).selectExpr(
        "value", f"{is_bad_record(read)} AS bad", f"{describe_misfit(read)} AS why"
    )

    found = {bytes(row.value).decode(): row for row in frame.collect()}

    assert [text for text in MOMENTS if found[text].bad] == []
    assert {text: found[text].why.removeprefix(": ")[: len(why)] for text, why in OTHERS.items()} == OTHERS
    assert [text for text in OTHERS if not found[text].bad] == []
