"""Five Python operators on nested records: planned copies, deep copies, and one hand-written function.

All convert the same Arrow batches to records and back, as a Python worker does. The five functions declare no
attributes, so the plan passes the objects without copies. The rival declares that everything may be kept, so
the plan makes deep copies everywhere. The hand-written function does the five steps at once. Ratios of
records exclude the conversions from and to Arrow.
"""

from __future__ import annotations

import gc
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from flowcore import Flow, Parquet
from flowcore.api.attributes import OperatorAttributes
from flowcore.api.operators import Filter, FlatMap, Map
from flowcore.chains import ChainSpec, ChainTask, Copy, Receiver, RecordDict, Step, StepKind
from flowcore.chains.records import batch_writer, to_records
from flowcore.errors import RunError
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from pipelines.benchmark import Figures, Report, in_turn
from tests.benchmarks._orders import ORDER, ORDER_DDL, generate_orders

T = TypeVar("T")

_SPARK = ", Spark"
BATCH = 10_000
"""Spark's own default for the rows of an Arrow batch."""
OUTPUT = pa.schema(
    [*ORDER, ("net", pa.float64()), ("gross", pa.float64()), ("parcel", pa.int64()), ("zone", pa.string())]
)
OUTPUT_DDL = f"{ORDER_DDL}, net DOUBLE, gross DOUBLE, parcel BIGINT, zone STRING"
KINDS: Mapping[type, StepKind] = {Map: "map", Filter: "filter", FlatMap: "flat_map"}
COPIES: Mapping[str, Copy] = {"reuse": "reuse", "shallow": "shallow", "deep": "deep"}
ANSWER = """
    WITH parcels AS (
        SELECT order_id, address.zip // 1000 AS area, country, unnest(range(0, len(items), 2)) // 2 AS parcel,
            list_sum(list_transform(items, lambda i: i.quantity * i.price)) * (1 - discount) * (1 + tax_rate)
                + shipping AS gross
        FROM orders WHERE status <> 'cancelled' AND payment.approved
    )
    SELECT count(*), sum(order_id), sum(parcel), sum(gross), count(DISTINCT country || '-' || area)
    FROM parcels
"""
RESULT = "SELECT count(*), sum(order_id), sum(parcel), sum(gross), count(DISTINCT zone) FROM parcels"


def priced(order: RecordDict) -> RecordDict:
    """The net price."""
    return {**order, "net": sum([item["quantity"] * item["price"] for item in order["items"]])}


def paid(order: RecordDict) -> bool:
    """Orders that are paid and not cancelled."""
    return order["status"] != "cancelled" and bool(order["payment"]["approved"])


def taxed(order: RecordDict) -> RecordDict:
    """The gross price."""
    net = order["net"] * (1 - order["discount"])
    return {**order, "gross": net * (1 + order["tax_rate"]) + order["shipping"]}


def parcels(order: RecordDict) -> Iterator[RecordDict]:
    """A record for each two items."""
    items = order["items"]
    for number in range(0, len(items), 2):
        yield {**order, "items": items[number : number + 2], "parcel": number // 2}


def routed(parcel: RecordDict) -> RecordDict:
    """The zone, also among the tags."""
    zone = f"{parcel['country']}-{parcel['address']['zip'] // 1000}"
    return {**parcel, "zone": zone, "tags": [*parcel["tags"], zone]}


def by_hand(order: RecordDict) -> Iterator[RecordDict]:
    """The five steps in one."""
    if order["status"] == "cancelled" or not order["payment"]["approved"]:
        return
    items = order["items"]
    net = sum([item["quantity"] * item["price"] for item in items])
    gross = net * (1 - order["discount"]) * (1 + order["tax_rate"]) + order["shipping"]
    zone = f"{order['country']}-{order['address']['zip'] // 1000}"
    tags = [*order["tags"], zone]
    for number in range(0, len(items), 2):
        yield {
            **order, "net": net, "gross": gross, "items": items[number : number + 2],
            "parcel": number // 2, "zone": zone, "tags": tags,
        }  # fmt: skip


def flow(attributes: OperatorAttributes | None = None) -> Flow:
    """The five operators; ``attributes`` of each, or what follows from their functions."""
    made = Flow("parcels")
    orders = made.read("orders", Parquet("orders", schema=ORDER_DDL))
    net = orders.map(priced, schema=f"{ORDER_DDL}, net DOUBLE", attributes=attributes)
    gross = net.filter(paid, attributes=attributes).map(
        taxed, schema=f"{ORDER_DDL}, net DOUBLE, gross DOUBLE", attributes=attributes
    )
    split = gross.flat_map(
        parcels, schema=f"{ORDER_DDL}, net DOUBLE, gross DOUBLE, parcel BIGINT", attributes=attributes
    )
    split.map(routed, schema=OUTPUT_DDL, attributes=attributes).write("parcels", Parquet("parcels"))
    return made


@click.command()
@click.option("--orders", default=100_000, show_default=True, help="Records that go in.")
@click.option(
    "--case", type=click.Choice(["functions", "exchanges", "branches"]), default="functions",
    show_default=True,
    help="Python functions in a row, operators with state in a row, or windows side by side.",
)  # fmt: skip
@click.option("--bids", default=2_000_000, show_default=True, help="Records of --case exchanges.")
@click.option("--rate", default=5_000.0, show_default=True, help="Bids a second of --case branches.")
@click.option("--seconds", default=60.0, show_default=True, help="Length of a run of --case branches.")
@click.option("--rounds", default=5, show_default=True, help="Counted runs of each contender.")
@click.option("--spark", is_flag=True, help="Also through Spark, from Parquet to Parquet.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *, orders: int, case: str, bids: int, rate: float, seconds: float, rounds: int, spark: bool, as_json: bool
) -> None:
    """Operators in a row.

    Functions: five Python operators with planned copies, with deep copies, and as one hand-written function.
    Exchanges: two operators with state against the first alone, and the cost of control rows.
    Branches: the delay of the results of three live windows in one flow, against a flow for each.
    """
    if case == "exchanges":
        from tests.benchmarks._exchanges import measure_exchanges  # noqa: PLC0415 - needs a JVM

        measure_exchanges(bids, rounds).show(as_json=as_json)
        return
    if case == "branches":
        from tests.benchmarks._branches import measure_branches  # noqa: PLC0415 - needs a JVM

        measure_branches(rate, seconds, rounds).show(as_json=as_json)
        return
    table = pa.Table.from_pylist(list(generate_orders(orders)), schema=pa.schema(ORDER))
    expected = _ask(ANSWER, orders=table)
    figures, ratios = _in_process(table, rounds, expected)
    if spark:
        more, through = _through_spark(table, rounds, expected)
        figures, ratios = [*figures, *more], {**ratios, **through}
    Report(
        name="chain",
        workload=f"{orders:,} orders of {len(ORDER)} fields, nested lists and structs among them, through "
        f"map, filter, map, flat_map and map; Arrow batches of {BATCH:,} in and out",
        figures=figures,
        ratios=ratios,
        verified="every output, warm-up included: value by value against the function by hand, through Spark "
        "by count and sums; and the function by hand against DuckDB's count and sums",
    ).show(as_json=as_json)


def _in_process(
    table: pa.Table, rounds: int, expected: tuple[Any, ...]
) -> tuple[list[Figures], dict[str, float]]:
    batches = table.to_batches(max_chunksize=BATCH)
    specs = {
        "decided copies": _spec(flow()),
        "deep copies": _spec(flow(OperatorAttributes())),
    }
    answer = pa.Table.from_batches(_by_hand(batches))
    _require(expected, _ask(RESULT, parcels=answer), "by hand")

    def check(name: str, made: Sequence[pa.RecordBatch]) -> None:
        if not pa.Table.from_batches(made).equals(answer):
            msg = f"{name}: the output is not that of the hand-written function: its speed is meaningless"
            raise RunError(msg)

    def check_records(name: str, made: list[RecordDict]) -> None:
        write = batch_writer(OUTPUT)
        check(name, [write(made[first : first + BATCH]) for first in range(0, len(made), BATCH)])

    work: dict[str, Callable[[], Sequence[pa.RecordBatch]]] = {
        **{name: partial(_chained, spec, batches) for name, spec in specs.items()},
        "by hand": lambda: list(_by_hand(batches)),
    }
    figures = _measured(work, rounds, table.num_rows, "", check)
    whole, deep, hand = (figure.median for figure in figures)

    records = [record for batch in batches for record in to_records(batch)]
    parts: dict[str, Callable[[], list[RecordDict]]] = {
        **{name: partial(_records_chained, spec, records) for name, spec in specs.items()},
        "by hand": partial(_records_by_hand, records),
    }
    bare = _measured(parts, rounds, len(records), ", records", check_records)
    bare_whole, bare_deep, bare_hand = (figure.median for figure in bare)
    return [*figures, *bare], {
        "ratio_to_deep_copies": whole / deep,
        "ratio_to_fused": whole / hand,
        "ratio_to_deep_copies_records": bare_whole / bare_deep,
        "ratio_to_fused_records": bare_whole / bare_hand,
    }


def _through_spark(
    table: pa.Table, rounds: int, expected: tuple[Any, ...]
) -> tuple[list[Figures], dict[str, float]]:
    from pyspark import cloudpickle  # noqa: PLC0415 - only this part needs a JVM

    from flowcore.spark.context import Context  # noqa: PLC0415 - only this part needs a JVM
    from flowcore.spark.run.flow import open_context, run_plan  # noqa: PLC0415

    # Workers cannot import a benchmark.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    folder = Path(tempfile.mkdtemp(prefix="flowcore-bench-"))
    settings = Settings.of({"data.dir": folder, "state.dir": folder / "state"})
    (folder / "orders").mkdir()
    pq.write_table(table, folder / "orders" / "part-0.parquet", row_group_size=BATCH)
    flows = {"decided copies": flow(), "deep copies": flow(OperatorAttributes())}
    plans = {name: plan_flow(each, settings=settings) for name, each in flows.items()}

    def ours(context: Context, name: str) -> None:
        run_plan(replace(plans[name], live=None), context, refresh=True)

    def theirs(context: Context) -> None:
        read = context.spark.read.schema(ORDER_DDL).parquet(str(folder / "orders"))
        read.mapInArrow(_by_hand, OUTPUT_DDL).write.mode("overwrite").parquet(str(folder / "parcels"))

    def check(name: str, _: None) -> None:
        _require(expected, _ask(RESULT, parcels=pq.read_table(folder / "parcels")), f"{name}, Spark")

    try:
        with open_context(plans["decided copies"], settings) as context:
            work = {
                **{name: partial(ours, context, name) for name in plans},
                "by hand": partial(theirs, context),
            }
            figures = _measured(work, rounds, table.num_rows, _SPARK, check)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    whole, deep, hand = (figure.median for figure in figures)
    return figures, {"ratio_to_deep_copies_spark": whole / deep, "ratio_to_fused_spark": whole / hand}


def _measured(
    work: Mapping[str, Callable[[], T]],
    rounds: int,
    records: int,
    suffix: str,
    check: Callable[[str, T], None],
) -> list[Figures]:
    """Run each contender once to warm up, and then all in turn; every output is checked."""
    # In its own process, a contender is measured by CPU time, which other processes do not affect.
    clock, unit = (time.perf_counter, "orders/s") if suffix == _SPARK else (time.process_time, "orders/CPU s")

    def speed(name: str, each: Callable[[], T], _round: int) -> float:
        began = clock()
        made = each()
        took = clock() - began
        check(name, made)
        return records / took

    contenders = [partial(speed, name, each) for name, each in work.items()]
    in_turn(1, *contenders)
    found = in_turn(rounds, *contenders)
    return [Figures(f"{name}{suffix}", unit, each) for name, each in zip(work, found, strict=True)]


def _chained(spec: ChainSpec, batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    task = ChainTask(spec)
    with task.running():
        return [output.batch for batch in batches for output in task.run(batch)]


def _by_hand(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function for Spark's ``mapInArrow``, with the same conversions and garbage collection settings."""
    write = batch_writer(OUTPUT)
    with _rare_collections():
        for batch in batches:
            for first in range(0, batch.num_rows, 1000):
                orders = to_records(batch.slice(first, 1000))
                yield write([parcel for order in orders for parcel in by_hand(order)])


def _records_by_hand(records: list[RecordDict]) -> list[RecordDict]:
    with _rare_collections():
        return [parcel for order in records for parcel in by_hand(order)]


@contextmanager
def _rare_collections() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(50_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _records_chained(spec: ChainSpec, records: list[RecordDict]) -> list[RecordDict]:
    task = ChainTask(spec)
    part, _ = task._parts[None]
    found: list[RecordDict] = []
    with task.running():
        part.run(records, 0, [(found.append, found.append)])
    return found


def _spec(made: Flow) -> ChainSpec:
    """The chain of a flow, as planned."""
    (stage,) = plan_flow(made).bounded
    (chain,) = stage.chains
    following: Step | None = None
    for node in reversed(chain.operators):
        downstream = chain.receivers(node)
        names = {name.lower() for name in node.columns}
        last = chain.outputs[node].value if following is None else "reuse"
        between = chain.copies[node, downstream[0]].value if downstream else "reuse"
        following = Step(
            name=node.name, kind=KINDS[type(node)], function=node.function,
            schema=pa.schema([field for field in OUTPUT if field.name in names]),
            receivers=() if following is None else (Receiver(following, COPIES[between]),),
            outlet=0 if following is None else None, outlet_copy=COPIES[last],
        )  # fmt: skip
    assert following
    return ChainSpec(pa.schema(ORDER), following)


def _ask(query: str, **tables: pa.Table) -> tuple[Any, ...]:
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        found: tuple[Any, ...] = connection.execute(query).fetchall()[0]
        return found


def _require(expected: tuple[Any, ...], found: tuple[Any, ...], name: str) -> None:
    pairs = zip(expected, found, strict=True)
    alike = [a == b or (isinstance(a, float) and math.isclose(a, b, rel_tol=1e-9)) for a, b in pairs]
    if not all(alike):
        msg = f"{name}: DuckDB finds {expected} and the output has {found}, so its speed is meaningless"
        raise RunError(msg)
