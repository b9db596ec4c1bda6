"""Declared states of keyed process functions: names, types, and what a restart refuses."""

import datetime as dt
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from flowcore.errors import SchemaError, StateError
from flowcore.process import KeyedProcessFunction
from flowcore.process.codec import decode_keys, encode_keys, keys_of, require_layouts
from flowcore.process.function import Outputs, ProcessContext, RecordMapping
from flowcore.process.opening import OpenContext
from flowcore.process.state import ProcessState
from flowcore.testing.harness import ProcessHarness
from tests.unit.process.test_process import SECOND, Scripted, _do


def test_state_that_is_declared_after_open_is_refused() -> None:
    with pytest.raises(StateError, match=r"value state 'more' is declared after open\(\)"):
        _do(ProcessHarness(Scripted()), "a", lambda f, _: f.opening.value_state("more", "INT"))


def _opening(declare: Callable[[OpenContext], Any]) -> None:
    class Declaring(KeyedProcessFunction):
        def open(self, context: OpenContext) -> None:
            declare(context)

    ProcessHarness(Declaring())


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda c: (c.value_state("x", "INT"), c.list_state("x", "INT")), "list state 'x' is declared twice"),
        (
            lambda c: c.value_state("x", "INT", ttl=timedelta(0)),
            "is not a positive number of whole milliseconds",
        ),
        (lambda c: c.value_state("x", "INT", ttl=5), "is not a positive number of whole milliseconds"),
        (
            lambda c: c.value_state("x", "INT", ttl=timedelta(microseconds=1500)),
            "is not a positive number of whole",
        ),
        (lambda c: c.value_state("x", "INT", ttl_update="birth"), "ttl_update='birth' is unknown"),
        (lambda c: c.value_state("x", "INT").get(), "without a current key: it would belong to no key"),
    ],
    ids=["twice", "no length", "a number", "microseconds", "another beginning", "used in open"],
)
def test_open_refuses(declare: Callable[[OpenContext], Any], message: str) -> None:
    with pytest.raises(StateError, match=message):
        _opening(declare)


@pytest.mark.parametrize("text", ["THING", "", "INTERVAL DAY", "VOID"], ids=str)
def test_open_refuses_a_type_that_is_none(text: str) -> None:
    with pytest.raises(SchemaError, match="is not a type of a state"):
        _opening(lambda context: context.value_state("x", text))


GOOD: list[tuple[str, Any]] = [
    ("INT", 2**31 - 1), ("BIGINT", -(2**63)), ("DOUBLE", 1.5), ("DOUBLE", 1), ("BOOLEAN", True),
    ("STRING", "x"), ("BINARY", b"x"), ("DATE", dt.date(2026, 1, 2)), ("DECIMAL(10, 2)", Decimal("1.50")),
    ("TIMESTAMP", dt.datetime(2026, 1, 2, tzinfo=dt.UTC)), ("ARRAY<INT>", [1, 2]),
    ("MAP<STRING, INT>", {"a": 1}), ("STRUCT<a: INT>", {"a": 1}),
]  # fmt: skip


class Typed(KeyedProcessFunction):
    def __init__(self, text: str) -> None:
        self.text = text

    def open(self, context: OpenContext) -> None:
        self.kept = context.value_state("kept", self.text)

    def process(self, record: RecordMapping, context: ProcessContext) -> Outputs:  # noqa: ARG002
        if "value" in record:
            self.kept.set(record["value"])
        return [{"kept": self.kept.get()}]


@pytest.mark.parametrize(("text", "value"), GOOD, ids=str)
def test_value_of_its_type_comes_back_the_same(text: str, value: Any) -> None:
    harness = ProcessHarness(Typed(text))
    harness.feed(("a", {"value": value}))
    harness.restart()
    (result,) = harness.feed(("a", {})).results

    assert (result.value["kept"], type(result.value["kept"])) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "value"),
    [("INT", 2**31), ("INT", True), ("INT", 1.0), ("TINYINT", -129), ("STRING", 1), ("BOOLEAN", 1),
     ("DATE", dt.datetime(2026, 1, 1, tzinfo=dt.UTC)), ("DOUBLE", Decimal(1)), ("ARRAY<INT>", (1,))],
    ids=str,
)  # fmt: skip
def test_value_of_another_type_is_refused(text: str, value: Any) -> None:
    with pytest.raises(StateError, match="does not fit"):
        ProcessHarness(Typed(text)).feed(("a", {"value": value}))


def test_restore_refuses_another_version_and_other_states() -> None:
    harness = ProcessHarness(Scripted())
    declared = harness._operator.declared
    written = encode_keys([], harness._state)
    layouts = {name: each.layout for name, each in declared.items()}

    with pytest.raises(StateError, match="state of version 2, this flowcore reads 1"):
        decode_keys(b"\2" + written[1:], ProcessState(), declared)
    with pytest.raises(
        StateError, match=r"'value' was written as 'value INT', .* declares 'value INT with ttl'"
    ):
        require_layouts(layouts, ProcessHarness(Scripted(ttl=SECOND))._operator.declared)
    with pytest.raises(
        StateError, match="'gone' was written as 'value INT', and the function declares 'nothing'"
    ):
        require_layouts({"gone": "value INT"}, declared)


def test_restore_takes_a_function_that_keeps_more() -> None:
    harness = ProcessHarness(Scripted())
    _do(harness, "a", lambda f, _: f.value.set(3))
    written = encode_keys(keys_of(harness._state), harness._state)
    declared, state = harness._operator.declared, ProcessState()
    require_layouts({"value": declared["value"].layout}, declared)
    decode_keys(written, state, declared)

    assert state.cells["a"]["value"][None].value == 3
