"""The check finds exactly the functions that break their promise, and names function and attribute."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest

from flowcore.chains import ChainSpec, ChainTask, Copy, Receiver, RecordDict, Step, StepKind
from flowcore.chains.reuse_check import changed_column, freeze
from flowcore.errors import ObjectReuseError
from flowcore.settings import CheckMode

SCHEMA = pa.schema({"n": pa.int64(), "tags": pa.list_(pa.string())})


def batch(size: int) -> pa.RecordBatch:
    """A batch of records."""
    return pa.RecordBatch.from_pylist([{"n": n, "tags": ["t"]} for n in range(size)], schema=SCHEMA)


def step(
    name: str, function: Callable[[Any], Any], *downstream: tuple[Copy, Step], kind: StepKind = "map",
    out: bool = False, inp: bool = False,
) -> Step:  # fmt: skip
    """A step; ``out`` and ``inp`` declare whether it stores its output and its input."""
    return Step(
        name=name, kind=kind, function=function, schema=SCHEMA, stores_output=out, stores_input=inp,
        receivers=tuple(Receiver(each, copy) for copy, each in downstream), outlet=None if downstream else 0,
        outlet_copy="deep" if out else "reuse",
    )  # fmt: skip


def run(head: Step, size: int = 4, check: CheckMode = "full") -> int:
    """Run a chain; return the number of output records."""
    task = ChainTask(ChainSpec(SCHEMA, head), check=check)
    with task.running():
        return sum(output.batch.num_rows for output in task.run(batch(size)))


def same(record: RecordDict) -> RecordDict:
    """Returns its argument."""
    return record


def set_column(record: RecordDict) -> RecordDict:
    """Changes its argument."""
    record["n"] = -1
    return record


def set_inner(record: RecordDict) -> RecordDict:
    """Changes a value inside its argument."""
    record["tags"].append("changed")
    return record


class Reusing:
    """Emits one object repeatedly."""

    def __init__(self) -> None:
        self.record: RecordDict = {"tags": []}

    def __call__(self, record: RecordDict) -> RecordDict:
        self.record["n"] = record["n"]
        return self.record

    def several(self, record: RecordDict) -> Iterable[RecordDict]:
        for number in range(2):
            self.record["n"] = record["n"] * 2 + number
            yield self.record


class Keeping:
    """Keeps its argument."""

    def __init__(self) -> None:
        self.last: Any = None

    def __call__(self, record: RecordDict) -> RecordDict:
        self.last = record
        return {**record}

    def inside(self, record: RecordDict) -> RecordDict:
        self.last = [record]
        return record

    def several(self, record: RecordDict) -> Iterable[RecordDict]:
        self.last = record
        yield {**record}

    def where(self, record: RecordDict) -> bool:
        self.last = record
        return True


def _shared_by_siblings(change: Callable[[RecordDict], RecordDict], *, first: bool) -> Step:
    quiet, loud = step("quiet", lambda r: {**r}), step("loud", change, inp=True)
    order = (loud, quiet) if first else (quiet, loud)
    return step("head", same, *(("reuse" if each is quiet else "shallow", each) for each in order))


LIES: dict[str, tuple[Callable[[], Step], str]] = {
    "changes-given": (
        lambda: step("head", same, ("reuse", step("bad", set_column))),
        "operator 'bad'.*changes the record.*column 'n'.*'head'.*input_record_stored=False",
    ),
    "changes-inside-given": (
        lambda: step("head", same, ("reuse", step("bad", set_inner))),
        "operator 'bad'.*column 'tags'.*input_record_stored=False",
    ),
    "filter-changes": (
        lambda: step("head", same, ("reuse", step("bad", lambda r: r.pop("n"), kind="filter"))),
        "operator 'bad'.*column 'n'.*input_record_stored=False",
    ),
    "flat-map-changes-late": (
        lambda: step(
            "head", same,
            ("reuse", step("bad", lambda r: (each for each in ({**r}, set_inner(r))), kind="flat_map")),
        ),
        "operator 'bad'.*column 'tags'.*input_record_stored=False",
    ),
    "changes-shared": (
        lambda: _shared_by_siblings(set_inner, first=False), "'loud'.*'head'.*'quiet' and 'loud'"
    ),
    "changes-shared-first": (
        lambda: _shared_by_siblings(set_inner, first=True), "operator 'loud'.*column 'tags'"
    ),
    "changes-downstream-of-a-filter": (
        lambda: step(
            "head", same, ("reuse", step("quiet", lambda r: {**r})),
            ("reuse", step("pass", bool, ("shallow", step("loud", set_inner, inp=True)), kind="filter")),
        ),
        "operator 'loud'.*'head'.*'quiet' and 'pass' share.*is_output_value_stored=True on 'head'",
    ),
    "reuses-emitted": (
        lambda: step("bad", Reusing(), ("reuse", step("next", lambda r: {**r}))),
        "operator 'bad'.*column 'n'.*is_output_value_stored=False",
    ),
    "reuses-emitted-in-flat-map": (
        lambda: step("bad", Reusing().several, kind="flat_map"),
        "operator 'bad'.*column 'n'.*is_output_value_stored=False",
    ),
    "forced-reuse": (
        lambda: step("head", same, ("reuse", step("bad", set_column, inp=True)), out=True),
        "operator 'bad'.*pipeline.object-reuse is true, though 'head' declares is_output_value_stored=True",
    ),
    "keeps": (
        lambda: step("head", same, ("reuse", step("bad", Keeping()))),
        "operator 'bad'.*keeps the record.*'head'.*input_record_stored=False",
    ),
    "keeps-inside": (
        lambda: step("head", same, ("reuse", step("bad", Keeping().inside))),
        "operator 'bad'.*keeps the record"
    ),
    "flat-map-keeps": (
        lambda: step("head", same, ("reuse", step("bad", Keeping().several, kind="flat_map"))),
        "operator 'bad'.*keeps the record",
    ),
    "filter-keeps": (
        lambda: step("head", same, ("reuse", step("bad", Keeping().where, kind="filter"))),
        "operator 'bad'.*keeps the record",
    ),
}  # fmt: skip


@pytest.mark.parametrize("check", ["full", "sample"])
@pytest.mark.parametrize(("made", "says"), LIES.values(), ids=LIES)
def test_broken_promise_is_found(made: Callable[[], Step], says: str, check: CheckMode) -> None:
    """The error names the function, the attribute and the column."""
    with pytest.raises(ObjectReuseError, match=says):
        run(made(), check=check)


def _recursive(record: RecordDict) -> RecordDict:
    """A value that refers to itself, and so to its record, until garbage collection."""

    def count(number: int) -> int:
        return number and count(number - 1) + len(record["tags"])

    return {**record, "n": count(3)}


TRUTHS: dict[str, Callable[[], Step]] = {
    "first-owner": lambda: step("head", set_inner, ("reuse", step("next", same))),
    "own-object": lambda: step("head", same, ("shallow", step("next", set_column, inp=True))),
    "deep-copy": lambda: step("head", same, ("deep", step("next", set_inner)), out=True),
    "stored": lambda: step("head", Reusing(), ("deep", step("next", set_column)), out=True),
    "keeps-its-own": lambda: step("head", same, ("shallow", step("next", Keeping(), inp=True))),
    "hands-on": lambda: step("head", same, ("reuse", step("next", same, ("reuse", step("last", same))))),
    "wraps": lambda: step("head", same, ("reuse", step("next", lambda r: {**r, "extra": [r]}))),
    "recursive": lambda: step("head", same, ("reuse", step("next", _recursive))),
    "generator": lambda: step(
        "head", same, ("reuse", step("g", lambda r: (r for _ in "ab"), kind="flat_map"))
    ),
    "new-records": lambda: step(
        "head", same, ("reuse", step("g", lambda r: iter([{**r}, {**r}]), kind="flat_map"))
    ),
    "nan": lambda: step("head", lambda r: {**r, "x": float("nan")}, ("reuse", step("next", same))),
}  # fmt: skip


@pytest.mark.parametrize("made", TRUTHS.values(), ids=TRUTHS)
def test_kept_promise_is_no_error(made: Callable[[], Step]) -> None:
    """This includes functions that look as if they broke their promise."""
    assert run(made()) in (4, 8)


def test_sample_sees_two_records_of_a_thousand() -> None:
    """Two consecutive records are checked, so a change in the next call is found, for any batch size."""
    seen: list[int] = []

    def late(record: RecordDict) -> RecordDict:
        seen.append(record["n"])
        if record["n"] == 1001:
            record["n"] = -1
        return record

    assert run(step("head", same, ("reuse", step("bad", late))), size=1001, check="sample") == 1001
    assert seen == list(range(1001))
    with pytest.raises(ObjectReuseError):
        run(step("head", same, ("reuse", step("bad", late))), size=1002, check="sample")
    task = ChainTask(ChainSpec(SCHEMA, step("head", same, ("reuse", step("bad", late)))), check="sample")
    for first in range(0, 994, 7):
        task.run(batch(1100).slice(first, 7))
    task.run(batch(1100).slice(994, 7))
    with pytest.raises(ObjectReuseError):
        task.run(batch(1100).slice(1001, 7))


def test_sample_runs_every_record_in_order() -> None:
    """Records outside the sample run in order, too."""
    found: list[int] = []

    def note(record: RecordDict) -> bool:
        found.append(record["n"])
        return not record["n"] % 2

    (output,) = ChainTask(
        ChainSpec(SCHEMA, step("head", note, kind="filter")), check="sample", indexed=True
    ).run(batch(2500))

    assert found == list(range(2500))
    assert output.origins == list(range(0, 2500, 2))
    assert output.batch.column("n").to_pylist() == output.origins


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, True),
        (1, 1.0),
        ([], ()),
        ({}, []),
        (0.0, -0.0),
        ("a", b"a"),
        ({"a": 1}, {"a": None}),
        ([1, 2], [2, 1]),
    ],
    ids=str,
)
def test_fingerprints_of_different_values_differ(left: Any, right: Any) -> None:
    """This includes values that Python treats as equal."""
    assert freeze(left) != freeze(right)


def test_fingerprint_names_the_column_that_changed() -> None:
    """Added and removed columns are named, too."""
    record = {"a": 1, "b": [{"c": bytearray(b"x")}]}
    before = freeze(record)
    assert changed_column(before, freeze(record)) is None

    record["b"][0]["c"][0] = 0  # type: ignore[index]
    assert changed_column(before, freeze(record)) == "b"
    assert changed_column(before, freeze({"a": 1})) == "b"
    assert changed_column(freeze({}), before) == "a"
