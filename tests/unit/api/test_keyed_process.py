"""A keyed process function is declared with a schema, side outputs and attributes."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flowcore import (
    Flow,
    KafkaTopic,
    Stream,
    bounded_out_of_orderness,
)
from flowcore.api.operators import KeyedProcess
from flowcore.errors import PlanError
from tests.idle_functions import IdleProcess

BID = "category STRING, price DOUBLE, gap_ms BIGINT, tags ARRAY<STRING>, at TIMESTAMP"


def _bids(flow: Flow | None = None, name: str = "bids", **topic: Any) -> Stream:
    topic = {"event_time": "at", "watermark": bounded_out_of_orderness(timedelta(seconds=4)), **topic}
    return (flow or Flow("f")).read(name, KafkaTopic(name, schema=BID, **topic))


class _Alarm(IdleProcess):
    pass


def test_process_has_the_columns_of_its_schema_and_side_outputs_theirs() -> None:
    alarm = _bids().process(_Alarm(), by="category", schema="label STRING", side_outputs={"rare": "n INT"})

    assert isinstance(alarm.operator, KeyedProcess)
    assert (alarm.columns, alarm.side_output("rare").columns) == (("label",), ("n",))
    assert alarm.operator.by == ("category",)
    with pytest.raises(PlanError, match=r"has no side output 'often'; it has rare"):
        alarm.side_output("often")


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda b: b.process(_Alarm, schema="n INT"), r"_Alarm is a class: .* pass _Alarm\(\)"),
        (lambda b: b.process(max, schema="n INT"), "is not a KeyedProcessFunction"),
        (lambda b: b.process(_Alarm(), by="shop", schema="n INT"), "names the column 'shop'"),
        (lambda b: b.process(_Alarm(), uses=["shop"], schema="n INT"), "names the column 'shop'"),
        (lambda b: b.process(_Alarm(), schema="n INT", timestamp="at"), "set event_time= there"),
        (
            lambda b: b.process(_Alarm(), schema="n INT", side_outputs={"a b": "n INT"}),
            "cannot name a folder",
        ),
    ],
    ids=["a class", "a function", "unknown key", "unknown use", "timestamp", "a name with a space"],
)
def test_process_is_checked(declare: Callable[[Stream], Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        declare(_bids())


def test_process_has_the_attributes_that_its_function_declares() -> None:
    class Careless(_Alarm):
        is_output_value_stored = False

    promised = [_bids().process(each, schema="n INT").attributes() for each in (_Alarm(), Careless())]

    assert [each.output_value_stored for each in promised] == [True, False]
