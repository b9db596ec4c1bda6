"""Attributes have declared or safe default values, and are refused if they contradict the flow."""

import logging
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from flowcore import (
    Flow,
    KafkaTopic,
    OperatorAttributes,
    OperatorAttributesBuilder,
    Parquet,
    Stream,
)
from flowcore.errors import PlanError
from flowcore.planner import plan_flow
from flowcore.planner.rules.fingerprint import fingerprint_operators
from tests.idle_functions import IdleRich

ROW = "a INT, b STRING"
SAFE = {
    "output_only_at_end": False,
    "output_on_checkpoint": False,
    "output_value_stored": True,
    "input_record_stored": True,
    "output_idempotent": False,
}


@pytest.mark.parametrize("name", SAFE)
def test_builder_sets_one_and_logs_the_others(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each attribute that is not set is logged at DEBUG with its assumed safe default."""
    with caplog.at_level(logging.DEBUG, logger="flowcore"):
        builder = OperatorAttributesBuilder()
        getattr(builder, f"set_{name}")(not SAFE[name])
        attributes = builder.build("op")

    assert {field: getattr(attributes, field) for field in SAFE} == {**SAFE, name: not SAFE[name]}
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}
    for field, value in SAFE.items():
        logged = f"operator 'op' does not declare {field}: {value} is assumed" in caplog.text
        assert logged == (field != name)


def test_builder_refuses_values_other_than_booleans() -> None:
    """The text 'false' is refused, since Python treats it as true."""
    with pytest.raises(PlanError, match="output_idempotent='false' is neither true nor false"):
        OperatorAttributesBuilder().set_output_idempotent("false")  # type: ignore[arg-type]


def test_declaring_logs_the_unknown_attributes_of_an_operator(caplog: pytest.LogCaptureFixture) -> None:
    """All attributes of a DataFrame function are unknown; those of Spark's operators are known."""
    with caplog.at_level(logging.DEBUG, logger="flowcore"):
        _sales().where("a > 1", name="known").apply(_same, name="unknown")

    assert "'known'" not in caplog.text
    assert caplog.text.count("operator 'unknown' does not declare") == len(SAFE)


def _same(record: Any) -> Any:
    return record


def _declares(**values: Any) -> Callable[[Any], Any]:
    def function(record: Any) -> Any:
        return record

    vars(function).update(values)
    return function


class _Rich(IdleRich):
    def keep(self, record: Any) -> Any:
        return record


class _Frugal(IdleRich):
    def is_output_value_stored(self) -> bool:
        return False

    def is_output_idempotent(self) -> bool:
        return True


class _Plainly:
    is_output_value_stored = False

    def __call__(self, record: Any) -> Any:
        return record


class _Bare:
    """A function without attributes."""

    def keep(self, record: Any) -> Any:
        return record

    @classmethod
    def plain(cls, record: Any) -> Any:
        return record


class _Property(_Plainly):
    @property
    def is_output_idempotent(self) -> bool:
        return True


FUNCTIONS: dict[str, tuple[Any, bool, bool]] = {
    "plain": (_same, False, False),
    "lambda": (lambda record: record, False, False),
    "builtin": (len, False, False),
    "partial": (partial(_same), False, False),
    "rich": (_Rich(), True, False),
    "bound-method": (_Rich().keep, True, False),
    "bound-method-of-anything": (_Bare().keep, True, False),
    "class-method": (_Bare.plain, False, False),
    "partial-of-rich": (partial(_Rich()), True, False),
    "rich-that-declares": (_Frugal(), False, True),
    "partial-of-one-that-declares": (partial(_Frugal()), False, True),
    "object-with-attribute": (_Plainly(), False, False),
    "object-with-property": (_Property(), False, True),
    "function-with-attribute": (_declares(is_output_value_stored=True), True, False),
    "function-with-both": (_declares(is_output_value_stored=True, is_output_idempotent=True), True, True),
}


def _sales() -> Stream:
    return Flow("f").read("sales", Parquet("sales", schema=ROW))


ADD: dict[str, Callable[..., Stream]] = {
    "map": lambda stream, function, **more: stream.map(function, schema=ROW, **more),
    "filter": lambda stream, function, **more: stream.filter(function, **more),
    "flat_map": lambda stream, function, **more: stream.flat_map(function, schema=ROW, **more),
    "map_batches": lambda stream, function, **more: stream.map_batches(function, schema=ROW, **more),
}


@pytest.mark.parametrize("kind", ADD)
@pytest.mark.parametrize("case", FUNCTIONS)
def test_functions_declare_what_they_promise(case: str, kind: str) -> None:
    """Attributes are an attribute, property or method; a plain function keeps nothing by default."""
    function, stored, idempotent = FUNCTIONS[case]
    attributes = ADD[kind](_sales(), function).attributes()

    assert (attributes.output_value_stored, attributes.output_idempotent) == (stored, idempotent)
    assert not attributes.input_record_stored


@pytest.mark.parametrize("kind", ADD)
def test_attributes_of_the_operator_take_precedence(kind: str) -> None:
    """A builder overrides only what was set on it; built attributes override everything."""
    partly = OperatorAttributesBuilder().set_output_value_stored(False)
    whole = OperatorAttributes(output_value_stored=False)

    assert ADD[kind](_sales(), _Rich(), attributes=partly).attributes() == OperatorAttributes(
        output_value_stored=False, input_record_stored=False
    )
    assert ADD[kind](_sales(), _Rich(), attributes=whole).attributes() == whole


def test_a_builder_may_be_used_again() -> None:
    """An operator keeps the values that the builder had when the operator was declared."""
    builder = OperatorAttributesBuilder().set_output_idempotent(True)
    stream = _sales().where("a > 1", attributes=builder)
    builder.set_output_idempotent(False)

    assert stream.attributes().output_idempotent


def _every(flow: Flow, attributes: OperatorAttributesBuilder) -> None:
    """One operator of each kind, with the given attributes."""
    sales = flow.read("sales", Parquet("sales", schema=ROW), attributes=attributes)
    sales.select("a", attributes=attributes)
    sales.with_columns(c="a", attributes=attributes)
    sales.where("a > 1", attributes=attributes)
    sales.aggregate(by="a", attributes=attributes)
    sales.join(sales.select("a", "b as c"), on="a", attributes=attributes)
    sales.union(sales, attributes=attributes)
    sales.apply(_same, attributes=attributes)
    for add in ADD.values():
        add(sales, _same, attributes=attributes)
    sales.write("out", Parquet("out"), attributes=attributes)


@pytest.mark.parametrize("name", SAFE)
def test_every_operator_takes_every_attribute(name: str) -> None:
    """Each operator has the attributes that were declared for it."""
    for value in (True, False):
        flow = Flow("f")
        _every(flow, getattr(OperatorAttributesBuilder(), f"set_{name}")(value))
        plan_flow(flow)
        found = {node.name: getattr(node.attributes(), name) for node in flow.operators}
        del found["select_2"]
        natural = {"aggregate_1"} if name == "output_only_at_end" else set()

        assert {node for node, each in found.items() if each != value} == (set() if value else natural)


def test_built_in_operators_declare_their_attributes() -> None:
    """A bounded group is complete at the end; a group of a stream replaces its earlier row."""
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema=ROW))
    over_stream = bids.aggregate(by="a", n="count(*)")
    over_table = flow.read("sales", Parquet("sales", schema=ROW)).aggregate(by="a", n="count(*)")

    assert over_table.attributes().output_only_at_end
    assert not over_stream.attributes().output_only_at_end
    assert over_stream.attributes().output_idempotent
    assert over_stream.select("a", "n").attributes().output_idempotent
    assert not over_stream.select("n").attributes().output_idempotent
    assert not bids.attributes().output_idempotent
    assert not bids.where("a > 1").attributes().output_value_stored
    assert bids.apply(_same).attributes() == OperatorAttributes()


MISTAKES: dict[str, tuple[Callable[[Stream], object], str]] = {
    "end-of-an-endless-input": (
        lambda bids: bids.where("a > 1").map(
            _same,
            schema=ROW,
            name="last",
            attributes=OperatorAttributesBuilder().set_output_only_at_end(True),
        ),
        "operator 'last' declares output_only_at_end=True, and its source 'bids' is unbounded.*until=",
    ),
    "end-of-an-endless-source": (
        lambda bids: bids.apply(_same, attributes=OperatorAttributes(output_only_at_end=True)),
        "operator 'apply_1' declares output_only_at_end=True, and its source 'bids'",
    ),
    "no-attributes": (
        lambda bids: bids.where("a > 1", attributes={"output_idempotent": True}),  # type: ignore[arg-type]
        "attributes={.*} are not operator attributes",
    ),
    "no-truth-value": (
        lambda bids: bids.where("a > 1", attributes=OperatorAttributes(output_idempotent=1)),  # type: ignore[arg-type]
        "output_idempotent=1 is neither",
    ),
    "declares-no-truth-value": (
        lambda bids: bids.filter(_declares(is_output_idempotent="yes"), name="odd"),
        "operator 'odd': is_output_idempotent='yes' of .*function is neither",
    ),
    "no-function": (
        lambda bids: bids.map("a + 1", schema=ROW),  # type: ignore[arg-type]
        r"operator 'map_1': 'a \+ 1' cannot be called",
    ),
    "class": (lambda bids: bids.filter(_Rich), r"operator 'filter_1': _Rich is a class.*_Rich\(\)"),
    "uses-unknown": (
        lambda bids: bids.map(_same, schema=ROW, uses=["aa"]),
        r"operator 'map_1': uses=\('aa',\) names the column 'aa'.*did you mean 'a'",
    ),
    "passes-unknown": (
        lambda bids: bids.map(_same, schema="a INT, c INT", passes=["c"]),
        "operator 'map_1'.*passes=.*'c'.*has a, b",
    ),
    "passes-not-put-out": (
        lambda bids: bids.flat_map(_same, schema="a INT", passes=["b"]),
        r"operator 'flat_map_1': passes=\('b',\) \(of its schema\) names the column 'b'",
    ),
    "passes-not-used": (
        lambda bids: bids.map_batches(_same, schema=ROW, uses=["a"], passes=["b"]),
        r"operator 'map_batches_1': .* names 'b', and uses=\('a',\) does not",
    ),
    "passes-as-another-type": (
        lambda bids: bids.map(_same, schema="a STRING", passes=["a"]),
        "'a' is unchanged, and it is INT in 'bids' and STRING in its schema",
    ),
    "later-column": (lambda bids: bids.map(_same, schema="c INT").where("a > 1"), "'where_1'.*'a'.*has c"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistake_is_an_error_when_declared(case: str) -> None:
    """The error names the operator and both sides of a contradiction."""
    declare, message = MISTAKES[case]

    with pytest.raises(PlanError) as caught:
        declare(Flow("f").read("bids", KafkaTopic("bids", schema=ROW)))

    assert re.search(message, str(caught.value)), str(caught.value)


def test_output_at_the_end_of_a_bounded_topic_is_accepted() -> None:
    """A topic with ``until`` is bounded."""
    bids = Flow("f").read("bids", KafkaTopic("bids", schema=ROW, until="latest"))

    assert bids.map(_same, schema=ROW, attributes=OperatorAttributes(output_only_at_end=True)).bounded


def test_python_operators_have_the_columns_they_declare() -> None:
    """A filter has its input's columns and key; a map keeps the key if it returns the key's columns."""
    bids = Flow("f").read("bids", KafkaTopic("bids", schema=ROW))
    counted = bids.aggregate(by="a", n="count(*)")

    assert bids.map(_same, schema="x INT, y INT").columns == ("x", "y")
    assert counted.filter(_same).columns == ("a", "n")
    assert counted.filter(_same).operator.key == ("a",)
    assert counted.map(_same, schema="A INT", passes="a").operator.key == ("A",)
    assert counted.map(_same, schema="a INT").operator.key is None
    assert counted.flat_map(_same, schema="a INT", passes=["a"]).operator.key is None
    assert counted.map(_same, schema="a INT").operator.updating


def _print(change: Callable[[Stream], Stream]) -> str:
    stream = change(_sales())
    return fingerprint_operators([*stream.operator.inputs, stream.operator])


def test_fingerprint_sees_functions_but_not_promises() -> None:
    """A fingerprint depends on the computation, not on declared attributes."""
    before = _print(lambda s: s.map(_same, schema=ROW))

    assert _print(lambda s: s.map(_same, schema=ROW, attributes=OperatorAttributes())) == before
    assert _print(lambda s: s.map(lambda record: {**record}, schema=ROW)) != before
    assert _print(lambda s: s.map(_same, schema="a INT")) != before
    assert _print(lambda s: s.map(_same, schema=ROW, uses=["a"])) != before
    assert _print(lambda s: s.flat_map(_same, schema=ROW, name="map_1")) != before
    assert _print(lambda s: s.map(_Rich(), schema=ROW)) != _print(lambda s: s.map(_Frugal(), schema=ROW))
