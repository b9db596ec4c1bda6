"""Windows and processes in Python give over a table what the pure operators give over its rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from flowcore import (
    EndOfStream,
    Flow,
    Global,
    KeyedProcessFunction,
    Parquet,
    Session,
    Sliding,
    Stream,
    Tumbling,
)
from flowcore.api.operators import KeyedProcess, Window
from flowcore.errors import PlanError, RunError
from flowcore.planner import plan_flow
from flowcore.spark.context import Context
from flowcore.spark.run.flow import run_plan
from flowcore.testing.harness import ProcessHarness, WindowHarness
from flowcore.windows import CountEvictor
from flowcore.windows.triggers import ContinuousEventTime, Count, EndOfStreamTrigger, Purging

pytestmark = pytest.mark.spark

Run = Callable[..., Any]
Rows = Callable[[str], list[tuple[Any, ...]]]
Visit = dict[str, Any]

VISITS = "key STRING, number BIGINT, at BIGINT"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
def visits(tmp_path: Path) -> list[Visit]:
    """A table ``visits`` in three unsorted files; returns its rows sorted by time."""
    chosen = random.Random(11)  # noqa: S311 - no secret
    keys = [*"abcdefgh", None]
    found = [
        {"key": chosen.choice(keys), "number": number, "at": chosen.randrange(-60_000, 60_000)}
        for number in range(300)
    ]
    (tmp_path / "visits").mkdir()
    schema = pa.schema([("key", pa.string()), ("number", pa.int64()), ("at", pa.int64())])
    for part in range(3):
        table = pa.Table.from_pylist(found[part::3], schema=schema)
        pq.write_table(table, tmp_path / "visits" / f"part-{part}.parquet")
    return sorted(found, key=lambda visit: (visit["at"], visit["number"]))


def _later(kept: Visit, new: Visit) -> Visit:
    return new if new["number"] > kept["number"] else kept


def _first_and_last(context: Any, records: Sequence[Visit]) -> Iterator[Visit]:
    yield {"first": records[0]["number"], "last": records[-1]["number"], "by": context.key}


class _Span:
    """The difference of the largest and the smallest number."""

    def create(self) -> list[int]:
        return []

    def add(self, kept: list[int], record: Visit) -> list[int]:
        return [min([*kept, record["number"]]), max([*kept, record["number"]])]

    def merge(self, one: list[int], other: list[int]) -> list[int]:
        return [min(one + other), max(one + other)]

    def result(self, kept: list[int]) -> Visit:
        return {"span": kept[1] - kept[0]}


_ENDS = "first BIGINT, last BIGINT, by STRING"
WINDOWS: dict[str, Callable[[Callable[..., Any]], Stream]] = {
    "sessions": lambda w: w(Session(gap=6)).aggregate(total="sum(number)", n="count(*)"),
    "sessions-with-a-function": lambda w: w(Session(gap=6)).process(_first_and_last, schema=_ENDS),
    "python-aggregate": lambda w: w(Session(gap=3)).aggregate_with(_Span(), schema="span BIGINT"),
    "reduce": lambda w: w(Sliding(20, slide=15)).reduce(_later),
    "in-order": lambda w: w(Tumbling(30)).aggregate(all="collect_list(number)", last="last_value(number)"),
    "count-trigger": lambda w: w(Tumbling(60), trigger=Count(4)).aggregate(n="count(*)", top="max(number)"),
    "global": lambda w: w(Global(), trigger=Purging(Count(5))).aggregate(total="sum(number)"),
    "continuous": lambda w: w(Tumbling(40), trigger=ContinuousEventTime(10_000)).aggregate(n="count(*)"),
    "evictor": lambda w: w(Tumbling(30), evictor=CountEvictor(2)).aggregate(total="sum(number)"),
    "ranks": lambda w: w(Tumbling(20)).top_n(2, order="number desc", ties=True),
    "ranks-of-sessions": lambda w: w(Session(gap=6)).top_n(1, order=["number", "at desc"], rank="place"),
    "end-of-input": lambda w: w(EndOfStream()).process(_first_and_last, schema=_ENDS),
}


def _shown(time_ms: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return None


def _in_one_order(rows: Sequence[Sequence[Any]]) -> list[str]:
    return sorted(repr(tuple(row)) for row in rows)


def _written(rows: Rows, folder: str) -> list[str]:
    found = rows(f"set timezone = 'UTC'; select * from '{{dir}}/{folder}/*.parquet'")  # noqa: S608
    plain = [[each.astimezone(UTC) if isinstance(each, datetime) else each for each in row] for row in found]
    return _in_one_order(plain)


def test_deduplication_passes_one_row_in_each_length(run: Run, rows: Rows, visits: list[Visit]) -> None:
    """Rows of a key pass in order of time if no row less than the length before has passed; null is a key."""
    flow = Flow("f")
    read = flow.read("in", Parquet("visits", schema=VISITS))
    first = read.deduplicate(by="key", within=timedelta(seconds=7), timestamp="at")
    first.select("number", "key").write("out", Parquet("out"))
    run(flow)

    passed: dict[str | None, int] = {}
    expected = []
    for visit in visits:
        if visit["at"] - passed.get(visit["key"], -1_000_000) >= 7_000:
            passed[visit["key"]] = visit["at"]
            expected.append((visit["number"], visit["key"]))
    assert _written(rows, "out") == _in_one_order(expected)


@pytest.mark.parametrize("case", WINDOWS)
def test_windows_give_what_the_operator_gives(case: str, run: Run, rows: Rows, visits: list[Visit]) -> None:
    """All records in order of time, followed by the end of input, give the operator's results."""
    flow = Flow("f")
    read = flow.read("in", Parquet("visits", schema=VISITS))
    stream = WINDOWS[case](lambda windows, **more: read.window(windows, by="key", timestamp="at", **more))
    node = stream.operator
    assert isinstance(node, Window)
    assert node.compiled().value == "key-group"
    stream.write("out", Parquet("out"))
    run(flow)
    harness = WindowHarness(node.config)
    harness.feed(*((visit["key"], {n: visit[n] for n in node.uses}, visit["at"]) for visit in visits))
    harness.end_of_input()
    expected = [
        (
            each.key, *(each.value[name] for name in node.values),
            _shown(each.window_start_ms), _shown(each.window_end_ms), each.firing, each.is_late,
        )
        for each in harness.results
    ]  # fmt: skip
    assert len(expected) > 8
    assert _written(rows, "out") == _in_one_order(expected)


class _Gaps(KeyedProcessFunction):
    """Emits how long a key was silent; odd values go to a side output, and totals are emitted at the end."""

    def open(self, context: Any) -> None:
        self.last = context.value_state("last", "BIGINT")
        self.seen = context.reducing_state("seen", "BIGINT", lambda one, other: one + other)

    def process(self, record: Mapping[str, Any], context: Any) -> Iterator[Visit]:
        silent_ms = context.timestamp_ms - self.last.get(context.timestamp_ms)
        self.last.set(context.timestamp_ms)
        self.seen.add(1)
        context.register_event_timer(context.timestamp_ms + 5_000)
        context.register_processing_timer(0)
        if record["number"] % 7 == 0:
            context.side_output("odd", {"number": record["number"], "of": context.key})
        yield {"key": context.key, "at": context.timestamp_ms, "n": silent_ms}

    def on_timer(self, time_ms: int, context: Any) -> Iterator[Visit]:
        if not self.last.get() + 5_000 > time_ms:
            context.side_output("sizes", {"n": self.seen.get()})
            yield {"key": context.key, "at": time_ms, "n": None}


class _Batches(KeyedProcessFunction):
    """Processes whole batches."""

    def process_batch(self, keys: Sequence[Any], batch: pa.RecordBatch, context: Any) -> list[pa.RecordBatch]:
        doubled = pc.multiply(batch.column("number"), 2)
        times = pa.array(context.timestamps_ms, pa.int64())
        return [pa.record_batch({"n": doubled, "at": times, "key": pa.array(keys)})]


_NUMBERS = "key STRING, at BIGINT, n BIGINT"


def test_process_gives_what_the_operator_gives(run: Run, rows: Rows, visits: list[Visit]) -> None:
    """State by key, timers at the end of input, results and side outputs are those of the operator."""
    flow = Flow("f")
    stream = flow.read("in", Parquet("visits", schema=VISITS)).process(
        _Gaps(), by="key", timestamp="at", uses=["number"], schema=_NUMBERS,
        side_outputs={"odd": "number BIGINT, of STRING", "sizes": "n BIGINT"},
    )  # fmt: skip
    stream.write("out", Parquet("out"))
    stream.side_output("odd").write("odd", Parquet("odd"))
    stream.side_output("sizes").where("n > 0").write("sizes", Parquet("sizes"))
    node = stream.operator
    assert isinstance(node, KeyedProcess)
    run(flow)
    harness = ProcessHarness(_Gaps(), side_outputs=["odd", "sizes"])
    harness.feed(*((visit["key"], {"number": visit["number"]}, visit["at"]) for visit in visits))
    harness.end_of_input()
    got = {"out": harness.results, **harness.side_outputs}
    assert {name: len(each) for name, each in got.items()} == {"out": 309, "odd": 43, "sizes": 9}
    for folder, results in got.items():
        assert _written(rows, folder) == _in_one_order([tuple(each.value.values()) for each in results])


def test_functions_downstream_of_a_process_run_in_its_call(
    context: Context, rows: Rows, visits: list[Visit]
) -> None:
    """The physical plan has one Python node, and results are those of the functions in a row."""
    plans: list[str] = []
    flow = Flow("f")
    found = flow.read("in", Parquet("visits", schema=VISITS)).process(
        _Gaps(), by="key", timestamp="at", uses=["number"], schema=_NUMBERS,
        side_outputs={"odd": "number BIGINT, of STRING", "sizes": "n BIGINT"}, name="gaps",
    )  # fmt: skip
    long = found.filter(lambda r: r["n"] is None or r["n"] > 100).map(_doubled, schema=_NUMBERS)
    twice = long.flat_map(lambda r: [r, {**r, "key": "copy"}], schema=_NUMBERS, name="twice")
    twice.apply(lambda frame: plans.append(_physical(frame)) or frame, schema=_NUMBERS).write(
        "out", Parquet("out")
    )
    (stage,) = plan_flow(flow, settings=context.settings).bounded
    assert [chain.name for chain in stage.chains] == ["gaps > filter_1 > map_1 > twice"]

    run_plan(plan_flow(flow, settings=context.settings), context)

    assert [plan.count("MapInArrow") for plan in plans] == [1]
    harness = ProcessHarness(_Gaps(), side_outputs=["odd", "sizes"])
    harness.feed(*((visit["key"], {"number": visit["number"]}, visit["at"]) for visit in visits))
    harness.end_of_input()
    made = [each.value for each in harness.results if each.value["n"] is None or each.value["n"] > 100]
    expected = [_doubled(dict(each)) for each in made]
    expected += [{**each, "key": "copy"} for each in expected]
    assert len(expected) > 400
    assert _written(rows, "out") == _in_one_order([tuple(each.values()) for each in expected])


def _doubled(record: Visit) -> Visit:
    return {**record, "n": None if record["n"] is None else record["n"] * 2}


def _physical(frame: Any) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_process_of_batches_sees_rows_in_order_of_time(run: Run, rows: Rows, visits: list[Visit]) -> None:
    """Without a key there is one group, and the function's output keeps its order."""
    flow = Flow("f")
    read = flow.read("in", Parquet("visits", schema=VISITS))
    read.process(_Batches(), timestamp="at", schema="at BIGINT, n BIGINT").write("out", Parquet("out"))
    run(flow)
    with_places = """select file_row_number, "at", n
        from read_parquet('{dir}/out/*.parquet', file_row_number = true)"""
    assert [row[1:] for row in rows(with_places)] == [(v["at"], 2 * v["number"]) for v in visits]


@pytest.mark.parametrize("windows", [Session(gap=1), Tumbling(1)], ids=["key-group", "native"])
def test_late_output_of_bounded_windows_is_empty(
    windows: Any, run: Run, rows: Rows, visits: list[Visit]
) -> None:
    """Event time does not advance until the end of input, so no record is late."""
    flow = Flow("f")
    stream = flow.read("in", Parquet("visits", schema=VISITS)).window(
        windows, by="key", timestamp="at", late="side-output"
    )
    results = stream.aggregate(n="count(*)")
    results.write("out", Parquet("out"))
    results.late.write("late", Parquet("late"))
    run(flow)
    assert rows("select sum(n) from '{dir}/out/*.parquet'") == [(len(visits),)]
    assert rows("select count(*) from '{dir}/late/*.parquet'") == [(0,)]


@pytest.mark.usefixtures("visits")
def test_failing_function_is_named(run: Run) -> None:
    """The error has the operator's name and the exception."""

    def refuses(_context: Any, _records: Sequence[Visit]) -> list[Visit]:
        msg = "not this"
        raise ValueError(msg)

    flow = Flow("f")
    windows = flow.read("in", Parquet("visits", schema=VISITS)).window(Session(gap=1), timestamp="at")
    windows.process(
        refuses,
        schema="n BIGINT",
    ).write("out", Parquet("out"))
    with pytest.raises(RunError, match=r"operator 'window_1': its function raised ValueError: not this"):
        run(flow)


@pytest.mark.usefixtures("visits")
def test_row_without_timestamp_is_refused_by_name(run: Run) -> None:
    """The error is that of native windows."""
    flow = Flow("f")
    read = flow.read("in", Parquet("visits", schema=VISITS))
    windows = read.window(Session(gap=1), by="key", timestamp="if(number = 7, null, at)")
    windows.aggregate(n="count(*)").write("out", Parquet("out"))
    with pytest.raises(
        RunError, match=r"operator 'window_1': the record \{.*\} has no timestamp: it belongs"
    ):
        run(flow)


ODD = "CASE number % 5 WHEN 0 THEN 0.0D WHEN 1 THEN -0.0D WHEN 2 THEN double('NaN') WHEN 3 THEN 1.5D END"


@pytest.mark.parametrize(
    "key", [ODD, f"float({ODD})", f"struct({ODD} as x, key)", f"if(key = 'a', null, struct({ODD}))"]
)
@pytest.mark.parametrize("windows", [Session(gap=1_000), Global()], ids=["by-column", "by-record"])
@pytest.mark.usefixtures("visits")
def test_keys_are_grouped_as_spark_groups_them(run: Run, context: Context, key: str, windows: Any) -> None:
    """Zeros and NaN, alone and in a struct, have one window per key."""
    flow = Flow("f")
    visits = flow.read("visits", Parquet("visits", schema=VISITS)).with_columns(odd=key)
    kept = visits.window(windows, by="odd", timestamp="at", trigger=_at_the_end(windows))
    kept.aggregate(n="count(*)").write("out", Parquet("out"))
    visits.aggregate(by="odd", n="count(*)").write("native", Parquet("native"))

    run(flow)

    found, native = (_counts(context, folder) for folder in ("out", "native"))
    assert len(found) > 3
    assert found == native


def _at_the_end(windows: Any) -> Any:
    return EndOfStreamTrigger() if isinstance(windows, Global) else None


def _counts(context: Context, folder: str) -> list[tuple[str, int]]:
    """Number of rows by key; keys as text, so that NaN can be compared."""
    frame = context.spark.read.parquet(context.path(folder)).selectExpr("to_json(struct(odd)) AS odd", "n")
    return sorted(
        (row.odd, row.n) for row in frame.groupBy("odd").sum("n").withColumnRenamed("sum(n)", "n").collect()
    )


@pytest.mark.usefixtures("visits")
def test_key_without_equality_is_refused(run: Run) -> None:
    """An array within a struct, whose type only Spark knows. Others are refused where they are declared."""
    flow = Flow("f")
    visits = flow.read("visits", Parquet("visits", schema=VISITS)).with_columns(odd="struct(array(number))")
    found = visits.window(Session(1), by="odd", timestamp="at").aggregate(n="count(*)")
    found.select("n").write("out", Parquet("out"))

    with pytest.raises(
        PlanError, match=r"by='odd' is .*: arrays, maps and structs with them have no equality"
    ):
        run(flow)
