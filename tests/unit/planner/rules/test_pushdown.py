"""Filters run before Python functions if this changes no result, and nowhere else."""

import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore import (
    Flow,
    KafkaTopic,
    OperatorAttributes,
    OperatorAttributesBuilder,
    Parquet,
    Stream,
)
from flowcore.api.operators import Filter, FlatMap, Map, Operator, Read, Where, Write
from flowcore.planner import plan_flow
from flowcore.planner.rules.pushdown import push_filters
from flowcore.planner.ways import find_upstream
from tests.idle_functions import IdleRich

ROW = "a INT, b INT"
REPLACING = OperatorAttributesBuilder().set_output_idempotent(True)
Declare = Callable[[Stream], Stream]


def _same(record: Any) -> Any:
    return record


class _Rich(IdleRich):
    """A function that may count its records, although it keeps none."""

    def is_output_value_stored(self) -> bool:
        return False


def _order(declare: Declare, bounded: bool = False) -> tuple[str, dict[str, Any]]:
    """The planned order of the operators between source and sink."""
    flow = Flow("f")
    source = Parquet("in", schema=ROW) if bounded else KafkaTopic("in", schema=ROW)
    end = declare(flow.read("in", source))
    end.write("out", Parquet("out") if bounded else KafkaTopic("out"))
    plan = plan_flow(flow)
    operators = plan.bounded[0].operators if plan.live is None else plan.live.queries[0].operators
    names = [node.name for node in operators if not isinstance(node, (Read, Write))]
    return " ".join(names), dict(plan.filters)


def _passing(stream: Stream, **more: Any) -> Stream:
    return stream.map(_same, schema=ROW, passes=["a", "b"], name="f", **more)


MOVED: dict[str, tuple[Declare, str]] = {
    "below-a-filter": (lambda s: s.filter(_same, name="f").where("a > 1", name="w"), "w f"),
    "below-a-map": (lambda s: _passing(s).where("a > 1", name="w"), "w f"),
    "below-a-flat-map": (
        lambda s: s.flat_map(_same, schema=ROW, passes=["b"], name="f").where("B > 1", name="w"),
        "w f",
    ),
    "below-batches": (
        lambda s: s.map_batches(_same, schema=ROW, passes=["a"], name="f").where("a + 1 > 1", name="w"),
        "w f",
    ),
    "below-a-chain": (lambda s: _passing(s).filter(_same, name="g").where("a > 1", name="w"), "w f g"),
    "two": (
        lambda s: s.filter(_same, name="f").where("a > 1", name="w").where("b > 1", name="v"),
        "w v f",
    ),
    "two-with-a-function-between": (
        lambda s: _passing(s).where("a > 1", name="w").filter(_same, name="g").where("b > 1", name="v"),
        "w v f g",
    ),
    "no-column": (lambda s: s.map(_same, schema="x INT", name="f").where("true", name="w"), "w f"),
}


@pytest.mark.parametrize("case", MOVED)
def test_filter_goes_before_functions(case: str) -> None:
    """The plan names the functions."""
    declare, expected = MOVED[case]

    order, filters = _order(declare)

    assert order == expected
    assert all(decision.value.startswith("before ") and decision.reasons for decision in filters.values())


STAYING: dict[str, tuple[Declare, str, str, str]] = {
    "not-passed": (
        lambda s: s.map(_same, schema=ROW, passes=["a"], name="f").where("a > b", name="w"),
        "f w", "f does not say that it passes b on unchanged", r"passes=\['b'\] on f",
    ),
    "between-two-functions": (
        lambda s: s.map(_same, schema=ROW, name="f").filter(_same, name="g").where("a > 1", name="w"),
        "f g w", "f does not say that it passes a on", r"passes=\['a'\] on f",
    ),
    "state": (
        lambda s: s.filter(_Rich(), name="f").where("a > 1", name="w"),
        "f w", "f may keep state", "put it before f",
    ),
    "declares-state": (
        lambda s: _passing(s, attributes=OperatorAttributes()).where("a > 1", name="w"),
        "f w", "f may keep state", "put it before f",
    ),
    "replacing": (
        lambda s: s.map(
            _same, schema=ROW, key="a", passes=["a"], attributes=REPLACING, name="f"
        ).where("a > 1", name="w"),
        "f w", "rows of f replace earlier ones", "",
    ),
    "random": (
        lambda s: s.filter(_same, name="f").where("a > rand()", name="w"),
        "f w", "may change from call to call", "",
    ),
    "clock": (
        lambda s: s.filter(_same, name="f").where("a > unix_millis(current_timestamp())", name="w"),
        "f w", "may change from call to call", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STAYING)
def test_filter_stays_with_a_reason(case: str) -> None:
    """The plan states the reason and what would change it."""
    declare, expected, why, change = STAYING[case]

    order, filters = _order(declare)

    assert order == expected
    assert filters["w"].value == "where it stands"
    assert re.search(why, " ".join(filters["w"].reasons))
    assert re.search(change, " ".join(filters["w"].change))


def test_filter_stays_if_others_read_the_dropped_records() -> None:
    """The other readers would miss records."""
    flow = Flow("f")
    kept = flow.read("in", KafkaTopic("in", schema=ROW)).filter(_same, name="f")
    kept.where("a > 1", name="w").write("some", KafkaTopic("some"))
    kept.write("all", KafkaTopic("all"))
    plan = plan_flow(flow)

    assert dict(plan.filters)["w"].reasons == ("f is read by others, which need what it would drop",)
    assert plan.live is not None
    assert [node.inputs[0].name for node in plan.live.queries[0].operators if node.name == "w"] == ["f"]


def test_readers_without_a_sink_do_not_count() -> None:
    """They do not run."""
    order, _ = _order(lambda s: (f := s.filter(_same, name="f"), f.select("a"))[0].where("a > 1", name="w"))

    assert order == "w f"


def test_result_that_a_branch_without_a_sink_joins_is_there_once() -> None:
    """Its operators are not in the stage a second time, in their declared order."""
    flow = Flow("f")
    rows = flow.read("table", Parquet("table", schema=ROW))
    joined = _passing(rows).where("b > 1", name="w").select("a", "b as c", name="s")
    live = flow.read("live", KafkaTopic("live", schema=ROW))
    live.join(joined, on="a").write("out", KafkaTopic("out"))
    live.join(joined, on="a", name="unwritten")

    (stage,) = plan_flow(flow).bounded

    assert stage.name == "s"
    assert [node.name for node in stage.operators] == ["table", "w", "f", "s"]


def test_filter_of_a_batch_goes_only_before_what_drops_nothing() -> None:
    """A condition such as 1 / a > 0 fails for a record that the function would have dropped."""
    dropping: list[Declare] = [
        lambda s: s.filter(_same, name="f").where("1 / a > 0", name="w"),
        lambda s: s.flat_map(_same, schema=ROW, passes=["a"], name="f").where("1 / a > 0", name="w"),
        lambda s: s.map_batches(_same, schema=ROW, passes=["a"], name="f").where("1 / a > 0", name="w"),
    ]

    for declare in dropping:
        order, filters = _order(declare, bounded=True)
        assert order == "f w"
        assert filters["w"].reasons == ("in a batch it could fail on a record that f drops",)
    assert _order(lambda s: _passing(s).where("1 / a > 0", name="w"), bounded=True)[0] == "w f"


def test_filters_without_python_upstream_have_no_decision() -> None:
    """Spark places them; the flow's operators are the same objects."""
    flow = Flow("f")
    flow.read("in", KafkaTopic("in", schema=ROW)).where("a > 1").select("a").where("a > 2").write(
        "out", KafkaTopic("out")
    )

    assert push_filters(flow.operators) == (flow.operators, ())


def test_pushing_does_not_change_the_declared_flow() -> None:
    """The plan has its own operators with the same names, columns and keys."""
    flow = Flow("f")
    counted = flow.read("in", KafkaTopic("in", schema=ROW)).aggregate(by="a", n="count(*)")
    kept = counted.filter(_same, name="f").where("n > 1", name="w").select("a", "n", name="s")
    kept.write("out", KafkaTopic("out"))
    before = [(node.name, node.inputs) for node in flow.operators]

    planned, _ = push_filters(flow.operators)

    assert [(node.name, node.inputs) for node in flow.operators] == before
    assert [node.name for node in planned] == [node.name for node in flow.operators]
    declared = {node.name: node for node in flow.operators}
    for node in planned:
        twin = declared[node.name]
        assert (node.columns, node.key, node.updating) == (twin.columns, twin.key, twin.updating)


def _above(record: Any) -> bool:
    return bool(record["a"] % 3)


def _changing_b(record: Any) -> Any:
    return {**record, "b": record["a"] * 7 % 5}


def _several(record: Any) -> Iterator[Any]:
    yield from ({**record, "b": number} for number in range(record["a"] % 3))


STEPS: list[Declare] = [
    lambda s: s.filter(_above),
    lambda s: s.map(_changing_b, schema=ROW, passes=["a"]),
    lambda s: s.map(_changing_b, schema=ROW),
    lambda s: s.flat_map(_several, schema=ROW, passes=["a"]),
    lambda s: s.where("a > 4"),
    lambda s: s.where("b > 2"),
    lambda s: s.where("a > 7"),
]


def _computed(node: Operator, rows: list[dict[str, int]]) -> list[dict[str, int]]:
    """Run an operator in the simplest way."""
    if isinstance(node, Read):
        return rows
    given = _computed(node.inputs[0], rows)
    match node:
        case Where():
            column, _, number = node.condition.text.split()
            return [row for row in given if operator.gt(row[column], int(number))]
        case Filter():
            return [row for row in given if node.function(row)]
        case Map():
            return [node.function(row) for row in given]
        case FlatMap():
            return [made for row in given for made in node.function(row)]
        case _:
            return given


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 9), st.sampled_from(range(len(STEPS)))), min_size=1, max_size=9),
    data=st.lists(st.fixed_dictionaries({"a": st.integers(0, 12), "b": st.integers(0, 6)}), max_size=12),
)
def test_pushing_changes_no_result(steps: list[tuple[int, int]], data: list[dict[str, int]]) -> None:
    """Every sink of any tree of functions and filters gets the same records in the same order."""
    flow = Flow("f")
    streams = [flow.read("in", KafkaTopic("in", schema=ROW))]
    for parent, step in steps:
        streams.append(STEPS[step](streams[-1 - parent % min(2, len(streams))]))
    for stream in streams[-3:]:
        stream.write(f"to_{stream.operator.name}", KafkaTopic(f"{stream.operator.name}-out"))

    planned, filters = push_filters(flow.operators)

    for old, new in zip(flow.operators, planned, strict=True):
        if isinstance(old, Write):
            assert _computed(new, data) == _computed(old, data)
    stays = {name for name, decision in filters if decision.value == "where it stands"}
    for node in find_upstream(each for each in planned if isinstance(each, Write)):
        if isinstance(node, Where) and node.name in dict(filters):
            assert isinstance(node.inputs[0], (Map, Filter, FlatMap)) == (node.name in stays)
