"""A start is refused if the types of its state by key group are others than those of the checkpoint."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flowcore import Flow, KafkaTopic, Tumbling, monotonous
from flowcore.errors import StateError
from flowcore.kafka.topics import TopicIdentity
from flowcore.keyed.content import StoredSchemas
from flowcore.planner import plan_flow
from flowcore.planner.model import LiveQuery
from flowcore.settings import Settings
from flowcore.spark.checkpoint.plan_file import (
    checkpoint_folder,
    plan_file_of,
    require_fit,
    write_plan_file,
)
from flowcore.spark.checkpoint.stored_types import add_argument_types
from tests.idle_functions import IdleProcess

BIDS = TopicIdentity("cluster-a", "id-1", 2)


class First(IdleProcess):
    """Emits nothing."""


def count(*_: Any) -> Any:
    """A window function of Python."""
    return [{"first": None}]


def query_of(what: str) -> LiveQuery:
    flow = Flow("f")
    topic = KafkaTopic("bids", schema="id BIGINT, at BIGINT", watermark=monotonous())
    bids = flow.read("bids", topic)
    if what == "window":
        made = bids.window(Tumbling(60), by="id", name="made").aggregate(first="min(at)")
    elif what == "keyed aggregate":
        made = bids.aggregate(by="id", first="min(at)", ttl=timedelta(hours=1), name="made")
    elif what == "python window":
        windows = bids.window(Tumbling(60), by="id", name="made")
        made = windows.process(count, schema="first BIGINT")
    else:
        made = bids.process(First(), by="id", schema="id BIGINT, first BIGINT", name="made")
    made.write("out", KafkaTopic("out"), key="id")
    return plan_flow(flow).live_queries[0]


def stored(key: Any = None, first: Any = None) -> dict[str, StoredSchemas]:
    key, first = pa.field("id", key or pa.int64()), pa.field("first", first or pa.int64())
    return {"made": StoredSchemas(pa.schema([key]), pa.schema([key, first]))}


def checkpoint(query: LiveQuery, folder: Path, schemas: dict[str, StoredSchemas]) -> Path:
    made = checkpoint_folder(query, "f", Settings.of({"state.dir": folder}, environment={}))
    write_plan_file(query, "f", made, {}, topics={"bids": BIDS}, bounded={}, schemas=schemas)
    for name in ("offsets", "commits"):
        (made / name).mkdir()
        (made / name / "0").write_text('v1\n{}\n{"bids":{"0":5}}')
    return made


@pytest.mark.parametrize("what", ["window", "keyed aggregate", "python window", "process"])
def test_a_key_of_another_type_is_refused(tmp_path: Path, what: str) -> None:
    query = query_of(what)
    folder = checkpoint(query, tmp_path, stored(pa.int32()))

    with pytest.raises(StateError, match=r"key of operator 'made' was of int32, and now int64.*start anew"):
        require_fit(query, "f", folder, {}, stored())

    require_fit(query, "f", folder, {}, stored(pa.int32()))


@pytest.mark.parametrize("what", ["window", "keyed aggregate", "python window", "process"])
def test_a_result_of_another_type_is_refused_if_the_function_is_built_in(tmp_path: Path, what: str) -> None:
    """A Python function may emit something else of the same state."""
    query = query_of(what)
    folder, now = checkpoint(query, tmp_path, stored()), stored(first=pa.timestamp("us", "UTC"))

    if what in ("python window", "process"):
        require_fit(query, "f", folder, {}, now)
        return
    with pytest.raises(StateError, match="'first' of operator 'made' was of int64, and now timestamp"):
        require_fit(query, "f", folder, {}, now)


def test_a_file_without_types_and_an_operator_that_is_new_are_accepted(tmp_path: Path) -> None:
    query = query_of("window")
    folder = checkpoint(query, tmp_path, {"other": stored()["made"]})
    require_fit(query, "f", folder, {}, stored(pa.int32()))

    path = plan_file_of(folder)
    path.write_text(json.dumps({**json.loads(path.read_text()), "schemas": None}))

    require_fit(query, "f", folder, {}, stored(pa.int32()))


def test_what_may_be_null_in_a_key_is_no_difference(tmp_path: Path) -> None:
    query = query_of("window")
    key, required = (pa.struct([pa.field("a", pa.int64(), nullable=nullable)]) for nullable in (True, False))

    require_fit(query, "f", checkpoint(query, tmp_path, stored(key)), {}, stored(required))


def counted(*, then: bool = False) -> LiveQuery:
    """A query with aggregates whose results do not show the types of what they keep."""
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema="id BIGINT, at BIGINT", watermark=monotonous()))
    windows = bids.window(Tumbling(60), by="id", name="made")
    more: dict[str, Any] = {"then": count, "schema": "first BIGINT"} if then else {}
    made = windows.aggregate(n="count(distinct at)", first="min_by(id, at)", last="max(at)", **more)
    made.write("out", KafkaTopic("out"), key="id")
    return plan_flow(flow).live_queries[0]


def stored_of(query: LiveQuery, at: Any, last: Any = None) -> dict[str, StoredSchemas]:
    """What the exchange of the query stores if the column `at` is of a type."""
    (node,) = query.keyed
    key, kept = pa.field("id", pa.int64()), pa.field("last", last or pa.int64())
    records = pa.schema([key, pa.field("at", at)])
    results = pa.schema([key, pa.field("n", pa.int64()), pa.field("first", pa.int64()), kept])
    return {"made": StoredSchemas(pa.schema([key]), add_argument_types(node, results, records))}


@pytest.mark.parametrize("then", [False, True], ids=["plain", "python"])
def test_arguments_of_another_type_are_refused_where_no_result_shows_it(tmp_path: Path, then: bool) -> None:
    """Old values and new ones would be counted as different ones, or not be compared."""
    query = counted(then=then)
    folder = checkpoint(query, tmp_path, stored_of(query, pa.int64()))

    require_fit(query, "f", folder, {}, stored_of(query, pa.int64()))
    with pytest.raises(StateError) as refused:
        require_fit(query, "f", folder, {}, stored_of(query, pa.string()))

    assert "the arguments of 'n' of operator 'made' were of int64, and now string" in str(refused.value)
    assert "the arguments of 'first' of operator 'made' were of int64, int64, and now int64, string" in str(
        refused.value
    )
    assert "'last'" not in str(refused.value)


def test_arguments_that_an_earlier_version_did_not_store_are_accepted(tmp_path: Path) -> None:
    query = counted()
    before, now = stored_of(query, pa.int64()), stored_of(query, pa.string())
    plain = replace(before["made"], results=before["made"].results.remove_metadata())

    require_fit(query, "f", checkpoint(query, tmp_path, {"made": plain}), {}, now)


def test_result_of_another_type_is_named_once(tmp_path: Path) -> None:
    """Its arguments are of another type, too."""
    query = counted()
    folder = checkpoint(query, tmp_path, stored_of(query, pa.int64()))
    now = stored_of(query, pa.int64())["made"]
    names = [field.with_type(pa.string()) if field.name == "first" else field for field in now.results]
    metadata = {**(now.results.metadata or {}), b"flowcore.arguments.first": b"string, int64"}
    changed = StoredSchemas(now.keys, pa.schema(names, metadata=metadata))

    with pytest.raises(StateError) as refused:
        require_fit(query, "f", folder, {}, {"made": changed})

    assert str(refused.value).count("'first'") == 1
