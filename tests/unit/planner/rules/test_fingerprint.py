"""A fingerprint changes when the computation does, and only then; it is the same in every process."""

import datetime as dt
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, cached_property, partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from flowcore import Csv, EndOfStream, Flow, KafkaTopic, Parquet, Stream, from_frame
from flowcore.planner.rules.fingerprint import fingerprint_operators
from flowcore.windows.triggers import Count

Build = Callable[[Flow], Stream]
LIMIT = 5


def _read(schema: str = "a INT, b INT", **settings: Any) -> Build:
    return lambda flow: flow.read("in", Csv("in", schema=schema, **settings))


def _print(build: Build) -> str:
    flow = Flow("f")
    build(flow).write("out", Parquet("out"))
    return fingerprint_operators(flow.operators)


def _then(change: Callable[[Stream], Stream]) -> Build:
    return lambda flow: change(_read()(flow))


def _over(limit: int) -> Callable[[Any], Any]:
    return lambda frame: frame.where(frame.a > limit)


def _default(limit: int) -> Callable[[Any], Any]:
    def keep(frame: Any, limit: int = limit) -> Any:
        return frame.where(frame.a > limit)

    return keep


def _nested(limit: int) -> Callable[[Any], Any]:
    inner = _over(limit)
    return lambda frame: inner(frame.limit(1))


class _Model:
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def __call__(self, frame: Any) -> Any:
        return frame.where(frame.a > self.limit)

    def keep(self, frame: Any) -> Any:
        return frame.where(frame.a > self.limit)


def _twice(frame: Any) -> Any:
    return frame.where("a > 2")


def _made_with(_value: Any, frame: Any) -> Any:
    return frame


def _thrice(frame: Any) -> Any:
    return frame.where("a > 3")


def _apply(function: Callable[[Any], Any]) -> Build:
    return _then(lambda stream: stream.apply(function))


SAME: dict[str, tuple[Build, Build]] = {
    "declared-again": (_then(lambda s: s.where("a > 1")), _then(lambda s: s.where("a > 1"))),
    "function-again": (_apply(_over(1)), _apply(_over(1))),
    "object-again": (_apply(_Model(1)), _apply(_Model(1))),
    "partial-again": (_apply(partial(_twice)), _apply(partial(_twice))),
}
DIFFERENT: dict[str, tuple[Build, Build]] = {
    "expression": (_then(lambda s: s.where("a > 1")), _then(lambda s: s.where("a > 2"))),
    "column-name": (_then(lambda s: s.select("a as x")), _then(lambda s: s.select("a as y"))),
    "columns-swapped": (_then(lambda s: s.select("a", "b")), _then(lambda s: s.select("b", "a"))),
    "group": (
        _then(lambda s: s.aggregate(by="a", n="max(a)")),
        _then(lambda s: s.aggregate(by="b", n="max(a)")),
    ),
    "schema": (_read(), _read("a INT, b BIGINT")),
    "not-null": (_read(), _read("a INT, b INT NOT NULL")),
    "delimiter": (_read(), _read(delimiter=";")),
    "option": (_read(), _read(options={"nullValue": "-"})),
    "code": (_apply(_twice), _apply(_thrice)),
    "closure": (_apply(_over(1)), _apply(_over(2))),
    "default": (_apply(_default(1)), _apply(_default(2))),
    "closure-of-closure": (_apply(_nested(1)), _apply(_nested(2))),
    "object": (_apply(_Model(1)), _apply(_Model(2))),
    "bound-method": (_apply(_Model(1).keep), _apply(_Model(2).keep)),
    "partial": (_apply(partial(_default(0), limit=1)), _apply(partial(_default(0), limit=2))),
    "partial-of-another": (_apply(partial(_twice)), _apply(partial(_thrice))),
    "frame": (
        lambda flow: flow.read("in", from_frame(_twice, "a INT")),
        lambda flow: flow.read("in", from_frame(_thrice, "a INT")),
    ),
    "until": (
        lambda flow: flow.read("in", KafkaTopic("t", schema="a INT", until={0: 1})),
        lambda flow: flow.read("in", KafkaTopic("t", schema="a INT", until={0: 2})),
    ),
    "join-type": (
        _then(lambda s: s.join(s.select("a", "b as c"), on="a")),
        _then(lambda s: s.join(s.select("a", "b as c"), on="a", how="left")),
    ),
}


@pytest.mark.parametrize("case", SAME)
def test_fingerprint_is_the_same_for_the_same_computation(case: str) -> None:
    """Declaring a flow again changes nothing."""
    first, second = SAME[case]

    assert _print(first) == _print(second)


@pytest.mark.parametrize("case", DIFFERENT)
def test_fingerprint_sees(case: str) -> None:
    """Each of these changes gives another result over the same data."""
    first, second = DIFFERENT[case]

    assert _print(first) != _print(second)


def _uses_helper(frame: Any) -> Any:
    return _helper(frame).limit(LIMIT)


def _helper(frame: Any) -> Any:
    return frame.where("a > 1")


def test_fingerprint_sees_helpers_and_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function's own package is part of it."""
    before = _print(_apply(_uses_helper))

    with monkeypatch.context() as patch:
        patch.setitem(_uses_helper.__globals__, "_helper", _twice)
        assert _print(_apply(_uses_helper)) != before
    with monkeypatch.context() as patch:
        patch.setitem(_uses_helper.__globals__, "LIMIT", 6)
        assert _print(_apply(_uses_helper)) != before
    assert _print(_apply(_uses_helper)) == before


def _recursive(frame: Any, depth: int = 0) -> Any:
    return frame if depth else _recursive(frame, 1)


def test_fingerprint_ends_for_recursive_functions() -> None:
    """They may do so directly or through a closure."""

    def inner(frame: Any, depth: int = 0) -> Any:
        return frame if depth else inner(frame, 1)

    assert _print(_apply(_recursive)) != _print(_apply(inner))


def _uses_many(frame: Any) -> Any:
    return helper.module.convert(frame, VALUE, helper)


VALUE: Any = None
helper: Any = None


def _module(convert: Any) -> ModuleType:
    inner, outer = ModuleType("tests.helper.module"), ModuleType("tests.helper")
    inner.__dict__["convert"], outer.__dict__["module"] = convert, inner
    inner.__dict__["helper"] = outer  # modules may import each other
    return outer


def _class(bases: tuple[type, ...] = (), **members: Any) -> type:
    return type("Shop", bases, {"__module__": __name__, **members})


class _Slots:
    __slots__ = ("limit", "own")

    def __init__(self, limit: int) -> None:
        self.limit, self.own = limit, self


class _Parent:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.children = [{"parent": self}]
        self.again = self.children


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (cache(_twice), cache(_thrice)),
        (Decimal(1), Decimal(2)),
        (dt.date(2026, 1, 1), dt.date(2026, 1, 2)),
        (re.compile("a" * 300 + "b"), re.compile("a" * 300 + "c")),
        (np.arange(2_000), np.where(np.arange(2_000) == 1_000, 0, np.arange(2_000))),
        (_Model(1), _Model(2)),
        (_Slots(1), _Slots(2)),
        (_Parent(1), _Parent(2)),
        (partial(_twice, 1), partial(_twice, 2)),
        ({"k": [Decimal(1)]}, {"k": [Decimal(2)]}),
        (_class(limit=1), _class(limit=2)),
        (_class(limit=Decimal(1)), _class(limit=Decimal(2))),
        (_class((_class(run=_twice),)), _class((_class(run=_thrice),))),
        (_class(run=staticmethod(_twice)), _class(run=staticmethod(_thrice))),
        (_class(run=classmethod(_twice)), _class(run=classmethod(_thrice))),
        (_class(run=property(_twice)), _class(run=property(_thrice))),
        (_class(run=cached_property(_twice)), _class(run=cached_property(_thrice))),
    ],
    ids=[
        "cached", "decimal", "date", "pattern", "array", "object", "slots", "cycle", "partial", "nested",
        "class constant", "class value", "inherited", "static", "class method", "property", "cached property",
    ],
)  # fmt: skip
def test_fingerprint_sees_values_that_a_function_uses(
    one: Any, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are globals of its package, or what it is made with."""
    prints = []
    for value in (one, one, other):
        monkeypatch.setattr(sys.modules[__name__], "VALUE", value)
        prints.append((_print(_apply(_uses_many)), _print(_apply(partial(_made_with, value)))))

    assert prints[0] == prints[1]
    assert prints[0][0] != prints[2][0]
    assert prints[0][1] != prints[2][1]


def test_fingerprint_sees_functions_of_imported_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the function's own package is not only a name."""
    prints = []
    for convert in (_twice, _twice, _thrice):
        monkeypatch.setattr(sys.modules[__name__], "helper", _module(convert))
        prints.append(_print(_apply(_uses_many)))

    assert prints[0] == prints[1] != prints[2]


def _median(add: Any, **fields: Any) -> Any:
    methods = {"create": list, "add": add, "merge": add, "result": max, **fields}
    return type("Median", (), methods)()


@dataclass(frozen=True)
class _Rounded:
    digits: int

    def process(self, context: Any, values: Any) -> Any:  # noqa: ARG002
        return [round(value, self.digits) for value in values]

    def clear(self, context: Any) -> None:
        pass


@dataclass(frozen=True)
class _Cut(_Rounded):
    def process(self, context: Any, values: Any) -> Any:  # noqa: ARG002
        return [int(value) for value in values]


_Cut.__name__ = _Rounded.__name__


def _windowed(declare: Callable[[Any], Stream], **settings: Any) -> Build:
    return _then(lambda stream: declare(stream.window(EndOfStream(), by="a", **settings)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_windowed(lambda w: w.aggregate(n="max(b)")), _windowed(lambda w: w.aggregate(n="min(b)"))),
        (_windowed(lambda w: w.aggregate(n="max(b)")), _windowed(lambda w: w.aggregate(n="max(b + 1)"))),
        (
            _windowed(lambda w: w.aggregate(n="max(b)"), trigger=Count(2)),
            _windowed(lambda w: w.aggregate(n="max(b)"), trigger=Count(3)),
        ),
        (
            _windowed(lambda w: w.aggregate_with(_median(lambda _, a, b: a + b), schema="n INT")),
            _windowed(lambda w: w.aggregate_with(_median(lambda _, a, b: a - b), schema="n INT")),
        ),
        (
            _windowed(lambda w: w.process(_Rounded(1), schema="n INT")),
            _windowed(lambda w: w.process(_Rounded(2), schema="n INT")),
        ),
        (
            _windowed(lambda w: w.process(_Rounded(1), schema="n INT")),
            _windowed(lambda w: w.process(_Cut(1), schema="n INT")),
        ),
    ],
    ids=["aggregate", "argument", "trigger", "code of a method", "field", "code of a dataclass"],
)
def test_fingerprint_changes_with_what_windows_do(one: Build, other: Build) -> None:
    """This includes functions that are objects without a call method."""
    assert _print(one) == _print(one)
    assert _print(one) != _print(other)


PROGRAM = """
import re
from flowcore import EndOfStream, Flow, Parquet
from flowcore.planner.rules.fingerprint import fingerprint_operators
PATTERN = re.compile("a")
flow = Flow("f")
def keep(frame):
    return [x for x in frame if x in {"a", "b", "c", "d"}] and (lambda y: y)
class Node:
    def __init__(self):
        self.own, self.names = self, {"a", "b", ("c", 1), frozenset("de")}
        self.inner = object()
NODE = Node()
class Counted:
    nodes = {NODE, Node(), keep}
    def process(self, context, values):
        return [len(values), NODE, re.sub, PATTERN]
    def clear(self, context):
        pass
rows = flow.read("in", Parquet("in", schema="a INT")).apply(keep)
rows.window(EndOfStream()).process(Counted(), schema="n INT").write("out", Parquet("out"))
print(fingerprint_operators(flow.operators))
"""


def test_fingerprint_is_the_same_in_every_process() -> None:
    """It has no addresses and no order of sets, which would run all stages again."""
    prints = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip

    assert len(prints) == 1
