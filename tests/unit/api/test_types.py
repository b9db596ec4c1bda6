"""Types that declarations say for certain: keys and joins that cannot work are refused before Spark runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta

import pytest

from flowcore import Csv, Flow, Json, KafkaTopic, Parquet, Session, Tumbling, monotonous
from flowcore.api.flow import Stream
from flowcore.errors import PlanError
from tests.idle_functions import IdleProcess

SCHEMA = (
    "id BIGINT, name STRING, tags ARRAY<STRING>, place STRUCT<x: INT, y: INT>, path STRUCT<at: ARRAY<INT>>"
)
HOUR = timedelta(hours=1)


def _rows(flow: Flow, name: str = "rows", schema: str = SCHEMA) -> Stream:
    return flow.read(name, KafkaTopic(name, schema, watermark=monotonous()))


MADE: dict[str, tuple[Callable[[Stream], Stream], str, str | None]] = {
    "read": (lambda rows: rows, "TAGS", "ARRAY<STRING>"),
    "renamed": (lambda rows: rows.select("tags as t"), "t", "ARRAY<STRING>"),
    "cast": (lambda rows: rows.select("cast(tags as STRING) as t"), "t", "STRING"),
    "split": (lambda rows: rows.with_columns(t="split(name, ',')"), "t", "ARRAY"),
    "replaced": (lambda rows: rows.with_columns(tags="size(tags)"), "tags", None),
    "item": (lambda rows: rows.select("tags[0] as t"), "t", None),
    "field": (lambda rows: rows.select("path.at as t"), "t", None),
    "kept": (lambda rows: rows.where("id > 1").drop("name"), "tags", "ARRAY<STRING>"),
    "dropped": (lambda rows: rows.drop("tags"), "tags", None),
    "by": (lambda rows: rows.aggregate(by="tags", n="count(*)"), "tags", "ARRAY<STRING>"),
    "aggregated": (lambda rows: rows.aggregate(by="id", tags="max(name)"), "tags", None),
    "collected": (lambda rows: rows.aggregate(by="id", n="collect_list(name)"), "n", "ARRAY"),
    "window": (lambda rows: rows.window(Tumbling(1), by="name").aggregate(n="count(*)"), "name", "STRING"),
    "window-value": (
        lambda rows: rows.window(Tumbling(1), by="name").aggregate(tags="max(name)"),
        "tags",
        None,
    ),
    "function": (lambda rows: rows.map(dict, schema="tags STRING"), "tags", "STRING"),
    "union": (lambda rows: rows.union(rows.select("*")), "tags", "ARRAY<STRING>"),
    "mixed-union": (lambda rows: rows.union(rows.with_columns(id="cast(1 as INT)")), "id", None),
    "deduplicated": (lambda rows: rows.deduplicate(by="id", within=HOUR), "tags", "ARRAY<STRING>"),
}


@pytest.mark.parametrize("case", MADE)
def test_type_is_known_where_it_is_certain(case: str) -> None:
    """An expression that Spark must type has no known type."""
    build, column, kind = MADE[case]

    assert build(_rows(Flow("f"))).operator.types().get(column.lower()) == kind


def test_join_has_the_types_of_both_sides() -> None:
    """A column of the right that is joined on is not in the output, so that it says nothing of one there."""
    flow = Flow("f")
    left = _rows(flow).select("id", "upper(name) as city", "tags")
    right = flow.read("right", Parquet("right", "city BIGINT, size INT"))

    joined = left.join(right, on={"id": "city"})

    assert joined.columns == ("id", "city", "tags", "size")
    assert joined.operator.types() == {"id": "BIGINT", "tags": "ARRAY<STRING>", "size": "INT"}


KEYED: dict[str, Callable[[Stream, str], Stream]] = {
    "window": lambda rows, by: rows.window(Tumbling(10), by=by, name="it").aggregate(n="count(*)"),
    "process": lambda rows, by: rows.process(IdleProcess(), by=by, schema="id INT", name="it"),
    "reduce": lambda rows, by: rows.reduce(lambda kept, _: kept, by=by, schema=SCHEMA, name="it"),
    "expiring": lambda rows, by: rows.aggregate(by=by, n="count(*)", ttl=HOUR, name="it"),
    "deduplicate": lambda rows, by: rows.deduplicate(by=by, within=HOUR, name="it"),
    "latest": lambda rows, by: rows.latest(by=by, name="it"),
    "top_n": lambda rows, by: rows.top_n(2, by=by, order="id", name="it"),
}


@pytest.mark.parametrize("by", ["tags", "path"])
@pytest.mark.parametrize("case", KEYED)
def test_key_that_state_cannot_be_found_by_is_refused(case: str, by: str) -> None:
    """The flow is refused where it is declared, not after Spark's start."""
    with pytest.raises(PlanError, match=f"operator 'it': by='{by}' is .*ARRAY<.*no equality for finding"):
        KEYED[case](_rows(Flow("f")), by)


@pytest.mark.parametrize("by", ["name", "place", "id"])
@pytest.mark.parametrize("case", KEYED)
def test_other_keys_are_accepted(case: str, by: str) -> None:
    """A key whose type only Spark knows is accepted, too."""
    KEYED[case](_rows(Flow("f")), by)
    KEYED[case](_rows(Flow("f")).select(f"coalesce(tags) as {by}", "*"), by)


def test_native_aggregate_groups_by_a_list() -> None:
    """Spark itself can group by a list."""
    assert _rows(Flow("f")).aggregate(by="tags", n="count(*)").operator.key == ("tags",)


JOINED: dict[str, Callable[[Stream, Stream, Stream], Stream]] = {
    "bounded": lambda live, table, _: live.join(table, on={"tags": "key"}, name="it"),
    "co_group": lambda _, table, __: table.co_group(
        table.select("array(key) as tags"), on={"key": "tags"}, n="count(left)", name="it"
    ),
    "interval": lambda live, _, other: live.join_interval(
        other, on={"tags": "key"}, before=HOUR, after=HOUR, name="it"
    ),
    "regular": lambda live, _, other: live.join(other, on={"tags": "key"}, ttl=None, name="it"),
}


@pytest.mark.parametrize("case", JOINED)
def test_join_of_a_list_with_a_text_is_refused(case: str) -> None:
    """No value of one equals one of the other."""
    flow = Flow("f")
    table = flow.read("table", Parquet("table", "key STRING, size INT"))
    other = _rows(flow, "other", "key STRING, size INT")

    with pytest.raises(PlanError, match=r"operator 'it': '.*' is .*: no value of one equals one of the othe"):
        JOINED[case](_rows(flow), table, other)


@pytest.mark.parametrize(
    ("key", "partner"),
    [
        ("INT", "DATE"),
        ("BIGINT", "TIMESTAMP"),
        ("BOOLEAN", "DATE"),
        ("BINARY", "INT"),
        ("MAP<INT, INT>",) * 2,
    ],
)
def test_join_of_types_that_spark_does_not_compare_is_refused(key: str, partner: str) -> None:
    """Spark casts only texts, booleans and numbers for a comparison, and compares no maps."""
    flow = Flow("f")
    table = flow.read("table", Parquet("table", f"key {partner}, size INT"))

    with pytest.raises(PlanError, match=r"operator 'it': '.*' is .*: no value of one equals one of the othe"):
        _rows(flow, schema=f"id {key}").join(table, on={"id": "key"}, name="it")


@pytest.mark.parametrize(("key", "partner"), [("INT", "STRING"), ("DATE", "TIMESTAMP"), ("BOOLEAN", "INT")])
def test_join_of_types_that_spark_casts_is_accepted(key: str, partner: str) -> None:
    flow = Flow("f")
    table = flow.read("table", Parquet("table", f"key {partner}, size INT"))

    assert _rows(flow, schema=f"id {key}").join(table, on={"id": "key"}).columns == ("id", "size")


@pytest.mark.parametrize("other", ["DECIMAL(20, 0)", "DECIMAL(10, 2)", "DECIMAL"])
def test_join_of_two_streams_needs_decimals_of_the_same_digits(other: str) -> None:
    """Values of other types have other bytes, and so other key groups."""
    flow = Flow("f")
    decimals = _rows(flow, "other", f"key {other}, size INT")

    _rows(flow, "same", f"id {other}").join(decimals, on={"id": "key"}, ttl=None)
    with pytest.raises(
        PlanError, match=r"'it': 'id' of 'rows' is BIGINT, and 'key' of 'other' is DECIMAL.*C"
    ):
        _rows(flow).join(decimals, on={"id": "key"}, ttl=None, name="it")


@pytest.mark.parametrize(
    "sink",
    [Csv("out"), Parquet("out", partition_by="tags"), Json("out", partition_by=("id", "place"))],
    ids=str,
)
def test_files_that_cannot_hold_a_list_are_refused(sink: Csv | Parquet | Json) -> None:
    """Spark refuses them only when it has started."""
    with pytest.raises(PlanError, match=r"sink 'out': '(tags|place)' of 'rows' is .*<.*to_json\("):
        _rows(Flow("f")).write("out", sink)


def test_only_collections_are_exploded() -> None:
    """Spark refuses a single value only when it has started."""
    rows = _rows(Flow("f"))

    assert rows.select("explode(split(name, ',')) as x").select("explode(tags_of(x)) as y").columns == ("y",)
    with pytest.raises(PlanError, match=r"'explode\(name\) as x' explodes a STRING.*split\("):
        rows.select("explode(name) as x")


def test_join_of_two_streams_needs_one_type() -> None:
    """A table may have another one, which Spark casts; so may a column of unknown type."""
    flow = Flow("f")
    live, other = _rows(flow), _rows(flow, "other", "key INT, size INT")
    table = flow.read("table", Parquet("table", "key INT, size INT"))

    live.join(table, on={"id": "key"})
    live.with_columns(id="id + 1").join(other, on={"id": "key"}, ttl=None)
    with pytest.raises(PlanError, match=r"'it': 'id' of 'rows' is BIGINT, and 'key' of 'other' is INT.*CAST"):
        live.join(other, on={"id": "key"}, ttl=None, name="it")


@pytest.mark.parametrize("condition", ["id", "name", "cast(id as STRING)", "tags", "split(name, ',')"])
def test_condition_that_is_not_boolean_is_refused(condition: str) -> None:
    """Spark refuses it only when it has started."""
    with pytest.raises(PlanError, match=r"operator 'where_1': .* is \w+.* and not a condition"):
        _rows(Flow("f")).where(condition)


@pytest.mark.parametrize("condition", ["id > 1", "cast(name as boolean)", "good", "isnotnull(tags)"])
def test_condition_of_boolean_or_unknown_type_is_accepted(condition: str) -> None:
    """Types of functions are not known without Spark."""
    rows = _rows(Flow("f"), schema="id INT, name STRING, tags ARRAY<STRING>, good BOOLEAN")

    assert rows.where(condition).columns == rows.columns


MIXED: dict[str, tuple[str, str]] = {
    "text": ("DOUBLE", "STRING"), "boolean": ("DOUBLE", "BOOLEAN"), "time": ("BIGINT", "TIMESTAMP"),
    "list": ("STRING", "ARRAY<STRING>"), "bytes": ("STRING", "BINARY"),
    "decimal": ("DECIMAL(9, 2)", "STRING"),
}  # fmt: skip


@pytest.mark.parametrize("case", MIXED)
def test_union_of_types_that_do_not_belong_together_is_refused(case: str) -> None:
    """Spark makes texts of some of them, or fails when it has started. For a join it casts texts."""
    flow = Flow("f")
    left, right = MIXED[case]
    live, more = _rows(flow, "live", f"id {left}"), _rows(flow, "more", f"id {right}")
    table = flow.read("table", Parquet("table", f"key {right}"))

    with pytest.raises(PlanError, match=r"'it': 'id' is .* in 'live' and .* in 'more': .*CAST\(id AS"):
        live.union(more, name="it")
    refused = pytest.raises(PlanError, match=r"operator 'it': 'id' of 'live' is .* and 'key' of 'table' is")
    with refused if case in {"list", "time"} else nullcontext():
        live.join(table, on={"id": "key"}, name="it")


ALIKE = [
    ("INT", "BIGINT"), ("BIGINT", "DOUBLE"), ("DECIMAL(9, 2)", "INT"), ("DATE", "TIMESTAMP"),
    ("VARCHAR(9)", "STRING"), ("STRUCT<a: INT>", "STRUCT<a: BIGINT>"), ("VARIANT", "STRING"),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), ALIKE)
def test_types_that_spark_unites_are_accepted(left: str, right: str) -> None:
    """What Spark unites without a loss, or what only Spark can compare, is no error."""
    flow = Flow("f")
    live, more = _rows(flow, "live", f"id {left}"), _rows(flow, "more", f"id {right}")

    live.union(more)
    live.join(flow.read("table", Parquet("table", f"key {right}")), on={"id": "key"})


@pytest.mark.parametrize(
    ("declared", "kind"),
    [("id INT", "BIGINT"), ("id BOOLEAN", "BIGINT"), ("id STRING", "BIGINT"), ("id ARRAY<INT>", "BIGINT"),
     ("id TIMESTAMP", "STRING")],
)  # fmt: skip
def test_a_cut_whose_schema_does_not_take_each_value_is_refused(declared: str, kind: str) -> None:
    """Other values would be dead letters of the next query."""
    with pytest.raises(
        PlanError, match=rf"cut 'cut': 'id' of 'rows' is .*, and its schema says {declared[3:]}"
    ):
        _rows(Flow("f"), schema=f"id {kind}").through("cut", schema=declared)


@pytest.mark.parametrize(
    ("declared", "kind"),
    [("id BIGINT", "INT"), ("id DOUBLE", "BIGINT"), ("id BIGINT", "BIGINT"), ("id STRING", "TIMESTAMP")],
)
def test_a_cut_whose_schema_takes_each_value_is_accepted(declared: str, kind: str) -> None:
    """A wider type does, and the text of a time."""
    assert _rows(Flow("f"), schema=f"id {kind}").through("cut", schema=declared).columns == ("id",)


def test_a_sink_with_a_format_needs_types_that_hold_each_value() -> None:
    """Spark would find it when the run has started; JSON is written in the types of the stream."""
    rows = _rows(Flow("f"), schema="id BIGINT, size INT")
    wider, narrower = "id BIGINT, size BIGINT", "id INT, size INT"

    rows.write("wider", KafkaTopic("wider", wider, format="avro"))
    rows.write("json", KafkaTopic("json", narrower))
    rows.select("id + 1 as id", "size").write("unknown", KafkaTopic("unknown", narrower, format="avro"))
    with pytest.raises(
        PlanError, match="sink 'out': 'id' of 'rows' is BIGINT, and topic 'avro' has it as INT"
    ):
        rows.write("out", KafkaTopic("avro", narrower, format="avro"))


@pytest.mark.parametrize("call", ["explode(sizes)", "explode_outer(map('a', 1))"])
def test_explode_of_a_map_is_refused(call: str) -> None:
    """Spark makes two columns of it; its entries are a list."""
    rows = _rows(Flow("f"), schema="id INT, sizes MAP<STRING, INT>")

    with pytest.raises(PlanError, match=r"explodes a map, .* write 'explode\(map_entries\(.*\)\) as entry'"):
        rows.select("id", f"{call} as size")
    assert rows.select("id", "explode(map_entries(sizes)) as entry").columns == ("id", "entry")


REFUSED: dict[str, tuple[Callable[[Stream], object], str]] = {
    "field": (lambda rows: rows.select("place.z as z"), "reads the field 'z' of 'place', .* the fields x, y"),
    "field-in-field": (
        lambda rows: rows.where("path.at.x > 1 and place.x.y > 2"),
        "reads the field 'y' of 'place.x', which is INT, which has no fields",
    ),
    "field-of-text": (
        lambda rows: rows.aggregate(by="id", n="max(name.first)"),
        "'first' of 'name', which is STRING, which has no fields",
    ),
    "order": (lambda rows: rows.top_n(2, by="id", order="place desc"), "order by 'place', which is STRUCT<"),
    "gap": (
        lambda rows: rows.window(Session("name"), by="id"),
        r"gap='name' is STRING and not a number of.*Session\('CAST\(name AS BIGINT\)'\)",
    ),
    "sum": (lambda rows: rows.aggregate(by="id", n="sum(tags)"), r"'tags' is .* a number: .*'size\(tags\)'"),
    "sum-of-window": (
        lambda rows: rows.window(Tumbling(1), by="id").aggregate(n="sum(name)"),
        r"'name' is STRING and not a number: .*'CAST\(name AS DOUBLE\)'",
    ),
    "mean-of-distinct": (
        lambda rows: rows.aggregate(by="name", n="1 + avg(distinct cast(name as date))"),
        "is DATE and not a number: .*unix_date",
    ),
    "condition": (lambda rows: rows.aggregate(by="name", n="count_if(id)"), "'id' is BIGINT .*'id > 0'"),
    "arithmetic": (lambda rows: rows.where("id + 1"), "'id [+] 1' computes a value and is not a condition"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_expression_of_the_wrong_type_is_refused(case: str) -> None:
    """Spark, or the run, refuses it only when it has started."""
    declare, message = REFUSED[case]

    with pytest.raises(PlanError, match=message):
        declare(_rows(Flow("f")))


def test_expression_that_spark_can_type_is_accepted() -> None:
    """Spark casts text, reads a field of each element and a key of a map, and orders tables by structs."""
    rows = _rows(Flow("f"), schema=f"{SCHEMA}, sizes MAP<STRING, INT>, all ARRAY<STRUCT<x: INT>>")
    table = Flow("f").read("table", Parquet("table", SCHEMA))

    assert rows.select("PLACE.X as x", "all.x as xs", "sizes.small as s", "path.at[0] as at").columns
    assert rows.aggregate(by="id", n="sum(name)", yes="count_if(id > 1)").columns
    assert table.top_n(2, order="place").columns
    assert rows.window(Session("cast(name as INT)"), by="id").aggregate(n="sum(id)").columns


def test_csv_source_with_a_list_is_refused() -> None:
    """Its sink is refused, too."""
    with pytest.raises(PlanError, match=r"source 'in': 'tags' is ARRAY<STRING>, .*'tags STRING'"):
        Flow("f").read("in", Csv("in", SCHEMA))
