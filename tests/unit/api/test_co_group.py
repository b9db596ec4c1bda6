"""Co-groups of two bounded streams: declarations, errors, and the arguments of functions."""

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from flowcore import Flow, KafkaTopic, OperatorAttributesBuilder, Parquet, Stream
from flowcore.api.co_groups import BatchGroupFunction, RecordGroupFunction
from flowcore.api.functions import name_of
from flowcore.api.operators import CoGroup
from flowcore.errors import PlanError
from flowcore.planner import plan_flow
from flowcore.planner.rules.fingerprint import fingerprint_operators
from flowcore.planner.views.details import collect_details
from tests.idle_functions import IdleRich


def _sides(flow: Flow) -> tuple[Stream, Stream]:
    shops = flow.read("shops", Parquet("shops", schema="shop STRING, city STRING, opened DATE"))
    return shops, flow.read("sales", Parquet("sales", schema="place STRING, price DOUBLE, note STRING"))


def _grouped(*args: Any, **kwargs: Any) -> Stream:
    shops, sales = _sides(Flow("f"))
    return shops.co_group(sales, *args, on={"shop": "place"}, **kwargs)


def _every(key: Any, left: Any, right: Any) -> list[Any]:
    return [key, *left, *right]


def test_co_group_emits_at_the_end_without_a_declaration() -> None:
    """A key has all its records only then; attributes cannot change that."""
    given = OperatorAttributesBuilder().set_output_only_at_end(False)

    assert _grouped(n="count(left)").attributes().output_only_at_end
    assert _grouped(n="count(left)", attributes=given).attributes().output_only_at_end


@pytest.mark.parametrize(
    "further",
    [{"n": "count(right)"}, {"function": _every, "schema": "shop STRING, n INT"}],
    ids=["aggregates", "function"],
)
def test_co_group_is_committed_before_a_stream_that_joins_it_starts(further: dict[str, Any]) -> None:
    """Co-group, function and both sources are one batch stage; the edge to the stream is blocking."""
    grouped = _grouped(name="grouped", **further)
    live = grouped.graph.read("live", KafkaTopic("live", schema="shop STRING, bid DOUBLE"))
    live.join(grouped, on="shop", name="joined").write("out", KafkaTopic("out"))

    plan = plan_flow(grouped.graph)
    kinds = {str(edge): edge.kind.value for part in collect_details(plan) for edge in part.edges}

    (stage,) = plan.bounded
    assert stage.name == "grouped"
    assert {"shops", "sales", "grouped"} <= {node.name for node in stage.operators}
    assert stage.checkpoint.value == "none"
    assert kinds["grouped -> joined"] == "blocking"
    assert kinds["live -> joined"] == "pipelined"


def test_co_group_reads_the_key_and_what_its_aggregates_name() -> None:
    """Counting records reads none of their columns; lists of them read all."""
    counted = _grouped(n="count(left)", total="sum(right.PRICE)").operator
    listed = _grouped(all="collect_list(left)").operator

    assert counted.columns_read({"shop", "n", "total"}) == {"shop", "place", "price"}
    assert listed.columns_read({"shop", "all"}) == {"shop", "place", "city", "opened"}


@pytest.mark.parametrize(
    ("further", "message"),
    [
        ({"n": "sum(left.prise)"}, r"left input\) names the column 'prise'"),
        ({"n": "max(right.city)"}, r"right input\) names the column 'city'"),
        ({"n": "sum(left.city || right.note)"}, r"names left and right"),
        ({"n": "sum(price)"}, r"names price"),
        ({"n": "count(*)"}, r"names no side"),
        ({"n": "left.city"}, r"not one aggregate function"),
        ({"n": "sum(right.price) / 2"}, r"not one aggregate function"),
        ({"n": "sum(right.price) filter (where right.note = 'x')"}, r"not one aggregate function"),
        ({"SHOP": "count(left)"}, r"column 'SHOP' twice|column 'shop' twice"),
        ({}, r"needs either aggregates or a function"),
        ({"function": _every}, r"needs either aggregates or a function"),
        ({"schema": "n INT", "n": "count(left)"}, r"needs either aggregates or a function"),
        ({"function": _every, "schema": "n INT", "n": "count(left)"}, r"needs either aggregates or a func"),
        ({"function": 3, "schema": "n INT"}, r"3 cannot be called"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value)),
)
def test_co_group_refuses_what_it_cannot_compute(further: dict[str, Any], message: str) -> None:
    """Each aggregate is over the records of one side."""
    with pytest.raises(PlanError, match=message):
        _grouped(**further)


@pytest.mark.parametrize("swapped", [False, True], ids=["right", "left"])
def test_co_group_refuses_an_unbounded_side_and_names_both(swapped: bool) -> None:
    """A key of an unbounded side would never be complete."""
    flow = Flow("f")
    shops, _ = _sides(flow)
    live = flow.read("live", KafkaTopic("live", schema="shop STRING"))
    left, right = (live, shops) if swapped else (shops, live)

    with pytest.raises(PlanError, match=r"(?=.*'shops')(?=.*never comes for 'live').*until="):
        left.co_group(right, on="shop", n="count(left)")


def test_co_group_of_a_topic_that_ends_is_bounded() -> None:
    """A topic with ``until`` has an end."""
    flow = Flow("f")
    shops, _ = _sides(flow)
    past = flow.read("past", KafkaTopic("past", schema="shop STRING", until="latest"))

    assert past.co_group(shops, on="shop", n="count(left)").bounded


def test_co_group_aggregates_are_keyed() -> None:
    """Each row has a key of its own, so a topic is written with that key."""
    grouped = _grouped(n="count(left)")
    grouped.write("out", KafkaTopic("out"))

    assert grouped.operator.key == ("shop",)
    assert grouped.graph.sinks[0].key == ("shop",)


@pytest.mark.parametrize("kind", [RecordGroupFunction, BatchGroupFunction])
def test_function_of_groups_has_the_identity_of_the_users_function(kind: Callable[..., Any]) -> None:
    """Name, attributes and fingerprint are those of the given function."""
    wrapped = kind(_every, on=("shop",))
    again = pickle.loads(pickle.dumps(wrapped))  # noqa: S301 - made here

    assert name_of(wrapped) == "_every"
    assert type(again) is kind
    assert again.func is _every
    assert again.keywords == {"on": ("shop",)}


def test_co_group_of_a_rich_function_may_keep_its_output() -> None:
    """As for every operator, its output is copied unless it declares otherwise."""
    plain = _grouped(_every, schema="n INT").attributes()
    rich = _grouped(IdleRich(), schema="n INT").attributes()

    assert not plain.output_value_stored
    assert rich.output_value_stored


def test_co_groups_of_different_functions_or_aggregates_have_different_fingerprints() -> None:
    """A committed result is reused only if a new one would be the same."""
    made = [
        _grouped(_every, schema="n INT"), _grouped(lambda *_: [], schema="n INT"),
        _grouped(n="count(left)"), _grouped(n="count(right)"), _grouped(n="max(left.city)"),
    ]  # fmt: skip
    found = [fingerprint_operators([*stream.graph.operators]) for stream in made]

    assert len({*found}) == len(made)
    assert found[2] == fingerprint_operators([*_grouped(n="count(left)").graph.operators])


@pytest.mark.parametrize(("on", "key"), [(("a",), 1), (("a", "b"), (1, "x"))], ids=["one", "several"])
def test_function_of_records_gets_key_and_both_lists(on: tuple[str, ...], key: object) -> None:
    """The key is the value of one column, or a tuple of several."""
    group = {"a": 1, "b": "x", "_left": [{"v": 1}], "_right": []}

    assert RecordGroupFunction(_every, on=on)(group) == [key, {"v": 1}]


def test_function_of_batches_gets_the_records_of_each_group_alone() -> None:
    """Groups are separate in a sliced batch too, and if a side has no record."""
    side = pa.list_(pa.struct({"v": pa.int64()}))
    batch = pa.RecordBatch.from_pydict(
        {
            "k": pa.array([0, 1, 2]),
            "_left": pa.array([[{"v": 9}], [{"v": 1}, {"v": 2}], []], side),
            "_right": pa.array([[], [{"v": 3}], [{"v": 4}]], side),
        }
    ).slice(1)
    seen = []

    def summed(key: int, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        seen.append((key, left.to_pylist(), right.to_pylist()))
        return pa.RecordBatch.from_pydict({"k": [key]})

    found = BatchGroupFunction(summed, on=("k",))(batch)

    assert seen == [(1, [{"v": 1}, {"v": 2}], [{"v": 3}]), (2, [], [{"v": 4}])]
    assert found.to_pylist() == [{"k": 1}, {"k": 2}]


def test_function_of_batches_must_return_a_batch() -> None:
    """The error names the type that it returned."""
    side = pa.list_(pa.struct({"v": pa.int64()}))
    batch = pa.RecordBatch.from_pydict(
        {"k": [1], "_left": pa.array([[]], side), "_right": pa.array([[]], side)}
    )

    with pytest.raises(TypeError, match="returned a list, not an Arrow record batch"):
        BatchGroupFunction(_every, on=("k",))(batch)


def test_co_group_operator_lists_the_aggregates_of_each_side() -> None:
    """Its columns are the key under its left name, then the aggregates in their order."""
    node = _grouped(total="sum(right.price)", n="count(left)").operator

    assert isinstance(node, CoGroup)
    assert node.columns == ("shop", "total", "n")
    assert [(name, each.side, each.columns) for name, each in node.aggregates] == [
        ("total", "right", ("price",)), ("n", "left", ()),
    ]  # fmt: skip
