"""A mistake in the event time of a source is an error when it is declared."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from flowcore import Flow, KafkaTopic, Parquet, punctuated
from flowcore.api.event_time import event_time_expression, marker_condition
from flowcore.api.operators import Read
from flowcore.errors import ConfigurationError, PlanError
from flowcore.planner.rules.fingerprint import fingerprint_operators

SCHEMA = """id BIGINT, small INT, at TIMESTAMP, wall TIMESTAMP_NTZ, day DATE, text STRING, ratio DOUBLE,
            part STRUCT<ms: BIGINT, name: STRING>, `odd name` LONG"""


def _read(**topic: object) -> Read:
    node = Flow("f").read("bids", KafkaTopic("bids", SCHEMA, **topic)).operator  # type: ignore[arg-type]
    assert isinstance(node, Read)
    return node


@pytest.mark.parametrize(
    "text",
    [
        "id", "ID", "at", "`odd name`", "part.ms", "id * 1000", "small * id", "cast(small as bigint)",
        "cast(text as timestamp)", "timestamp_millis(id)", "unix_millis(at)", "at + interval 1 day",
        "coalesce(at, current_timestamp())", "if(id > 1, at, null)", "an_unknown_function(text)",
    ],
)  # fmt: skip
def test_event_time_is_milliseconds_or_a_timestamp(text: str) -> None:
    """A column or an expression; types that sqlglot cannot derive are checked at run time."""
    found = event_time_expression(_read(event_time=text))

    assert found is not None
    assert found.text == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("idd", "event_time='idd' names the column 'idd', which its input does not have.*did you mean 'id'"),
        ("small", "event_time 'small' is INT: neither BIGINT"),
        ("small * 1000", "is INT: neither BIGINT"),
        ("id / 1000", "is DOUBLE: neither BIGINT"),
        ("wall", "is TIMESTAMP_NTZ: neither BIGINT"),
        ("day", "is DATE: neither BIGINT"),
        ("text", "is STRING: neither BIGINT"),
        ("ratio", "is DOUBLE: neither BIGINT"),
        ("part.name", "is STRING: neither BIGINT"),
        ("part", "is STRUCT<.*: neither BIGINT"),
        ("from_unixtime(id)", "is STRING: neither BIGINT"),
        ("max(id)", "aggregates over several rows"),
        ("*", "one value is needed"),
        ("", "is not Spark SQL text"),
        ("id +", "is not a Spark SQL expression"),
    ],
)
def test_event_time_refuses_other_types(text: str, message: str) -> None:
    """The error has the operator's name."""
    with pytest.raises(PlanError, match=rf"operator 'bids'.*{message}"):
        _read(event_time=text)


@pytest.mark.parametrize("text", ["id > 1", "text like 'end%'", "part.name = 'a' or at is null", "mine(id)"])
def test_marker_is_a_condition(text: str) -> None:
    """It reads the source's columns."""
    found = marker_condition(_read(watermark=punctuated(text)))

    assert found is not None
    assert found.text == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text", "watermark 'text' is STRING: not a condition"),
        ("id", "watermark 'id' is BIGINT: not a condition"),
        ("kind = 'end'", "names the column 'kind'"),
    ],
)
def test_marker_refuses_other_types(text: str, message: str) -> None:
    """A marker must be true or false for each record."""
    with pytest.raises(PlanError, match=rf"operator 'bids'.*{message}"):
        _read(watermark=punctuated(text))


def test_source_without_event_time_uses_the_timestamp_of_kafka() -> None:
    """The source has no markers either."""
    assert event_time_expression(_read()) is None
    assert marker_condition(_read()) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"watermark": "monotonous"}, "watermark='monotonous' of topic 'bids' is not a strategy"),
        (
            {"elements": "values"},
            "elements='values' of topic 'bids' is not one of plain, tagged, value-only, auto",
        ),
        ({"headers": True}, "headers=True of topic 'bids' with elements='plain': there is neither tag"),
        ({"headers": True, "elements": "value-only"}, "there is neither tag nor timestamp"),
    ],
)
def test_topic_refuses_contradicting_elements(settings: dict[str, object], message: str) -> None:
    """It raises when it is declared."""
    with pytest.raises(ConfigurationError, match=message):
        KafkaTopic("bids", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"channels": "sales/bids"}, "channels='sales/bids' of topic 'bids' are not the names of channels"),
        ({"channels": ()}, "are not the names of channels; pass for instance"),
        ({"channels": ("a", 1)}, "are not the names of channels"),
        ({"channels": ("a", "")}, "the name '' has 0 bytes, and names have 1 to 255"),
        ({"channels": ("ü" * 128,)}, "has 256 bytes, and names have 1 to 255"),
        ({"channels": ("a",), "elements": "plain"}, "elements='plain': only tagged elements have channels"),
        ({"channels": ("a",), "elements": "auto"}, "elements='auto': only tagged elements have channels"),
    ],
)
def test_topic_refuses_names_that_no_channel_has(settings: dict[str, object], message: str) -> None:
    """It raises when it is declared."""
    KafkaTopic("bids", elements="tagged", channels=("ü" * 127 + "e", "sales/bids"))

    with pytest.raises(ConfigurationError, match=message):
        KafkaTopic("bids", **{"elements": "tagged", **settings})  # type: ignore[arg-type]


def test_only_sources_declare_channels() -> None:
    """A cut declares those of the source that reads it, and the plan shows them."""
    read = Flow("f").read("bids", KafkaTopic("bids", SCHEMA, elements="tagged", channels=("sales/bids", "x")))
    cut = read.select("id").through(
        KafkaTopic("cut", "id BIGINT", elements="tagged", channels=("f/bids-batches",))
    )

    assert read.operator.describe().endswith("from earliest, control elements of sales/bids, x only")
    assert cut.operator.topic is not None
    assert cut.operator.topic.channels == ("f/bids-batches",)
    with pytest.raises(PlanError, match=r"sink 'out': channels=\('x',\) of topic 'o'.*only its readers"):
        read.write("out", KafkaTopic("o", elements="tagged", channels=("x",)))


def test_source_must_declare_the_form_of_its_elements() -> None:
    """The flow that wrote them was planned elsewhere."""
    KafkaTopic("bids", elements="auto", headers=True)
    _read(elements="tagged", headers=True)

    with pytest.raises(PlanError, match=r"operator 'bids': elements='auto' of topic 'bids'.*unknown here"):
        _read(elements="auto")


def _fingerprint(**topic: object) -> str:
    flow = Flow("f")
    past = flow.read("past", KafkaTopic("bids", "id BIGINT, at TIMESTAMP", until={0: 9}, **topic))  # type: ignore[arg-type]
    past.write("out", Parquet("out"))
    return fingerprint_operators(flow.operators)


def test_fingerprint_of_a_topic_without_elements_never_changes() -> None:
    """Results that were committed before topics had elements stay valid."""
    assert _fingerprint() == "de865a2b23f3383d0bc64f297839b76f77682454510c960f94760492a9af6683"
    plain = {"elements": "plain", "headers": False, "watermark": None, "event_time": None, "channels": None}
    assert _fingerprint(**plain) == _fingerprint()


def test_fingerprint_sees_event_time_and_elements() -> None:
    """Each changes the records that are read."""
    prints = {
        _fingerprint(),
        _fingerprint(elements="tagged"),
        _fingerprint(elements="tagged", headers=True),
        _fingerprint(elements="tagged", channels=("a",)),
        _fingerprint(elements="tagged", channels=("b",)),
        _fingerprint(event_time="at"),
        _fingerprint(watermark=punctuated("id > 1")),
        _fingerprint(watermark=punctuated("id > 2")),
    }

    assert len(prints) == 8


def test_declaring_event_time_loads_neither_spark_nor_arrow() -> None:
    """Declaring and planning a flow takes little time."""
    code = (
        "import sys, json; from datetime import timedelta; from flowcore import *; flow = Flow('f');"
        "flow.read('a', KafkaTopic('a', 'id BIGINT', event_time='id', watermark=monotonous())).write("
        "'b', KafkaTopic('b', elements='auto'));"
        "from flowcore.planner import plan_flow; from flowcore.planner.views.text import render_text;"
        "render_text(plan_flow(flow)); "
        "print(json.dumps(sorted({'pyspark', 'pyarrow', 'numpy'} & {*sys.modules})))"
    )

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert json.loads(found.stdout) == []
