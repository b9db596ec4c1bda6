"""Cost of the tag and timestamp of elements in bytes and in time: tagged against value-only elements.

Both forms run in turn with random values of several sizes:

- Spark: a cached table of timestamps and values, or of elements, is converted by the SQL of
  `flowcore.spark.topics.elements` and written to a sink that does nothing.
- Kafka: one slice reads plain values and writes elements; a second one reads the elements, counts equal ones
  with a native aggregate, and writes elements. The time is that of Spark's batch, without its start. Bytes on
  the wire are those of the messages' values in the topic between them. Bytes of the shuffle are those that
  the second slice's exchange wrote, compressed, and the size of its rows before compression.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaException, Producer
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.progress import Progress

from flowcore import Flow, KafkaTopic
from flowcore.api.connectors import Elements
from flowcore.errors import RunError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import ensure_topics
from flowcore.planner import plan_flow
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.run.flow import open_context
from flowcore.spark.run.live_stage import LiveRun
from flowcore.spark.run.session import live_session
from flowcore.spark.topics import elements
from pipelines.auctions.readers import read_messages, read_values
from pipelines.benchmark import Figures, Report
from tests.benchmarks._rounds import parts_of, run_rates

Form = Literal["tagged", "value-only"]
FORMS: tuple[Form, Form] = ("tagged", "value-only")
SAVED_BYTES = 9
PARTITIONS = 2
PASSES = 5
"""Repetitions in Spark for one figure: a single one is too short to measure."""
PIECE = 10_000
WAIT_S = 30.0
LARGEST_LOAD_BYTES = 100 << 20
TIME_MS = 1_767_225_600_000


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement of both forms.

    Attributes:
        forms: The figures of each form, in the order of `FORMS`.
    """

    what: str
    forms: list[Figures]

    @property
    def figures(self) -> list[Figures]:
        return [replace(each, name=f"{self.what}, {each.name}") for each in self.forms]

    @property
    def ratio(self) -> float:
        """Ratio of value-only to tagged."""
        tagged, value_only = self.forms
        return value_only.median / tagged.median

    @property
    def ratio_by_slope(self) -> float | None:
        """The same without the start of a run, if both have it."""
        tagged, value_only = (each.by_slope for each in self.forms)
        return value_only / tagged if tagged and value_only else None


@click.command()
@click.option("--sizes", default="8,32,100,1000", show_default=True, help="Sizes of a value in bytes.")
@click.option("--records", default=1_000_000, show_default=True, help="Values in Spark.")
@click.option("--kafka-records", default=1_000_000, show_default=True, help="Values through Kafka.")
@click.option("--rounds", default=7, show_default=True, help="Counted runs of each form.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(sizes: str, records: int, kafka_records: int, rounds: int, *, as_json: bool) -> None:
    """Tagged elements against value-only ones: bytes on the wire and in the shuffle, and records/s."""
    found: list[Measured] = []
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="flowcore-bench-", ignore_cleanup_errors=True)
            )
        )
        progress = stack.enter_context(Progress(console=Console(stderr=True), transient=True))
        step = progress.add_task("", total=None)
        broker = stack.enter_context(EmbeddedBroker())
        settings = Settings.of(
            {
                "kafka.bootstrap.servers": broker.bootstrap_servers,
                "state.dir": folder / "state",
                "pipeline.force-timestamp-support": "false",
                "pipeline.auto-watermark-interval": "0",
            }
        )
        context = stack.enter_context(open_context(_plan_of_two(settings), settings))
        spark = live_session(context.spark, settings)
        for size in map(int, sizes.split(",")):
            for place, measure in (
                ("Spark", partial(_in_spark, spark, size, _most(records, size), rounds)),
                ("Kafka", partial(_through_kafka, context, size, _most(kafka_records, size), rounds)),
            ):
                progress.update(step, description=f"values of {size} bytes: {place}")
                found += measure()
    timed = [one for one in found if one.forms[0].unit == "records/s"]
    speeds = {one.what: one.ratio for one in timed}
    by_slope = [ratio for one in timed if (ratio := one.ratio_by_slope) is not None]
    Report(
        name="serializer",
        workload=f"{records:,} values of {sizes} bytes in Spark, {kafka_records:,} through Kafka, "
        f"at most {LARGEST_LOAD_BYTES >> 20} MiB of each size; {rounds} rounds of each form in turn, "
        "each also with a quarter of the values",
        figures=[figure for one in found for figure in one.figures],
        ratios={
            "worst_ratio": min(speeds.values()),
            **({"worst_ratio_by_slope": min(by_slope)} if len(by_slope) == len(timed) else {}),
            "saved_bytes_per_record": SAVED_BYTES,
            **{f"ratio_{what.replace(', ', '_').replace(' ', '_')}": ratio for what, ratio in speeds.items()},
        },
        verified=f"value-only saves exactly {SAVED_BYTES} bytes a record on the wire; what was decoded is "
        "what was encoded; every value came out of Kafka once",
    ).show(as_json=as_json)


def _in_spark(spark: SparkSession, size: int, records: int, rounds: int) -> list[Measured]:
    table = pa.table({"time": _times(records), "value": _values(size, records)})
    encoded = {"tagged": elements.tagged_record("time", "value"), "value-only": "value"}
    decoded = {
        "tagged": (
            f"CASE WHEN {elements.is_record('element')} THEN {elements.payload('element')} END AS value",
            f"{elements.timestamp_ms('element')} AS time",
        ),
        "value-only": ("element AS value",),
    }
    plain = {count: _cached(spark.createDataFrame(table.slice(0, count))) for count in parts_of(records)}
    wire = {
        (form, count): _cached(frame.selectExpr(f"{encoded[form]} AS element"))
        for form in FORMS
        for count, frame in plain.items()
    }

    def encode(form: Form, count: int) -> None:
        _consume(plain[count].selectExpr(f"{encoded[form]} AS element"))

    def decode(form: Form, count: int) -> None:
        _consume(wire[form, count].selectExpr(*decoded[form]))

    try:
        made = wire["tagged", records].selectExpr(*decoded["tagged"])
        _check(made.count() == records, "Spark")
        _check(made.exceptAll(plain[records].select("value", "time")).isEmpty(), "Spark")
        return [
            _timed(f"Spark {name}, {size} bytes", records, rounds, work)
            for name, work in (("encode", encode), ("decode", decode))
        ]
    finally:
        for frame in (*plain.values(), *wire.values()):
            frame.unpersist()


def _through_kafka(context: Context, size: int, records: int, rounds: int) -> list[Measured]:
    servers = context.servers(KafkaTopic("any"))
    values = _values(size, records)
    sources = {count: f"plain-{size}-{count}" for count in parts_of(records)}
    for count, source in sources.items():
        _send(servers, source, values.slice(0, count))
    elements_of: dict[tuple[Form, int], str] = {}
    numbers = itertools.count()
    wire: dict[Form, list[float]] = {form: [] for form in FORMS}
    shuffled: dict[Form, list[float]] = {form: [] for form in FORMS}
    rows: dict[Form, list[float]] = {form: [] for form in FORMS}

    def own(form: Form) -> Context:
        fresh = replace(
            context.settings,
            state_dir=context.settings.state_dir / f"{size}-{next(numbers)}",
            force_timestamp_support=form == "tagged",
        )
        return Context(context.spark, fresh, "serializer")

    def write(form: Form, count: int) -> float:
        topic = f"elements-{size}-{next(numbers)}"
        seconds, _ = _slice(_writing(sources[count], topic, form), own(form))
        sent = list(read_values(servers, topic))
        _check(len(sent) == count, f"Kafka, {form}: {len(sent):,} elements of {count:,} values")
        wire[form].append(sum(map(len, sent)) / count)
        elements_of[form, count] = topic
        return seconds

    def aggregate(form: Form, count: int) -> float:
        out = f"counts-{size}-{next(numbers)}"
        seconds, exchanged = _slice(_aggregating(elements_of[form, count], out, form), own(form))
        counted = _counted(servers, out, form)
        _check(counted == count, f"Kafka, {form}: {counted:,} counts of {count:,} values")
        if count == records:
            shuffled[form].append(exchanged["shuffleBytesWritten"] / count)
            rows[form].append(exchanged["dataSize"] / count)
        return seconds

    speeds = [
        Measured(
            f"Kafka {what}, {size} bytes",
            run_rates(rounds, {form: partial(work, form) for form in FORMS}, records),
        )
        for what, work in (("write", write), ("aggregate", aggregate))
    ]
    saved = wire["tagged"][0] - wire["value-only"][0]
    constant = len({*wire["tagged"]}) == len({*wire["value-only"]}) == 1
    _check(saved == SAVED_BYTES and constant, f"Kafka: {wire} bytes a record")
    sizes = {"on the wire": wire, "through the shuffle": shuffled, "in the shuffle's rows": rows}
    return [
        *(
            Measured(
                f"{what}, {size} bytes",
                [Figures(form, "bytes/record", found[form][-rounds:]) for form in FORMS],
            )
            for what, found in sizes.items()
        ),
        *speeds,
    ]


def _writing(source: str, target: str, form: Form) -> Flow:
    flow = Flow("write")
    read = flow.read("values", _bodies(source, "plain"))
    read.write("elements", KafkaTopic(target, elements=form, format="raw"))
    return flow


def _aggregating(source: str, target: str, form: Form) -> Flow:
    flow = Flow("aggregate")
    counts = flow.read("elements", _bodies(source, form)).aggregate(by="body", n="count(*)", name="counts")
    counted = counts.select("body", "CAST(n AS STRING) AS n")
    sink = KafkaTopic(target, schema="n STRING", format="raw", elements=form)
    counted.write("counted", sink, key="body")
    return flow


def _bodies(topic: str, form: Elements) -> KafkaTopic:
    # Dead letters would need another query, which would be timed too.
    return KafkaTopic(topic, schema="body BINARY NOT NULL", format="raw", elements=form, on_error="fail")


def _plan_of_two(settings: Settings) -> Plan:
    """A plan that needs as many task slots as the following ones."""
    ensure_topics(settings.bootstrap_servers or "", {"first": PARTITIONS})
    return plan_flow(_aggregating("first", "first-out", "value-only"), "slice", settings)


def _slice(flow: Flow, context: Context) -> tuple[float, Counter[str]]:
    """Seconds of a slice's batch from reading to writing, and the metrics of its exchange."""
    plan = plan_flow(flow, "slice", context.settings)
    own = Context(context.spark, context.settings, flow.name)
    with LiveRun(plan, own) as run:
        run.wait()
        (query,) = run.running.values()
        (batch,) = query.recentProgress
        seconds = batch.durationMs["addBatch"] / 1_000
        last = query._jsq.streamingQuery().lastExecution().executedPlan()
        return seconds, sum(_exchanges(last), Counter())


def _exchanges(plan: Any) -> Iterator[Counter[str]]:
    if plan.nodeName() == "Exchange":
        yield Counter(
            {name: plan.metrics().apply(name).value() for name in ("shuffleBytesWritten", "dataSize")}
        )
    children = plan.children()
    for number in range(children.size()):
        yield from _exchanges(children.apply(number))


def _most(records: int, size: int) -> int:
    return min(records, LARGEST_LOAD_BYTES // size)


def _timed(what: str, records: int, rounds: int, work: Callable[[Form, int], object]) -> Measured:
    def run(form: Form, count: int) -> float:
        began = time.perf_counter()
        for _ in range(PASSES):
            work(form, count)
        return (time.perf_counter() - began) / PASSES

    return Measured(what, run_rates(rounds, {form: partial(run, form) for form in FORMS}, records))


def _values(size: int, records: int) -> pa.BinaryArray:
    """Random bytes of one size; with 8 bytes or more they are distinct."""
    data = np.random.default_rng(size).bytes(records * size)
    offsets = np.arange(records + 1, dtype=np.int32) * size
    buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(data)]
    # The stubs have no type for this array.
    return pa.Array.from_buffers(pa.binary(), records, buffers)  # type: ignore[return-value]


def _times(records: int) -> pa.Int64Array:
    return pa.array(TIME_MS + np.arange(records) // 10, pa.int64())


def _cached(frame: DataFrame) -> DataFrame:
    frame.cache().count()
    return frame


def _consume(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _send(servers: str, topic: str, values: pa.BinaryArray) -> None:
    ensure_topics(servers, {topic: PARTITIONS})
    producer = Producer(
        {"bootstrap.servers": servers, "linger.ms": 50, "enable.idempotence": True, "log_level": 0}
    )
    for number, start in enumerate(range(0, len(values), PIECE)):
        batch = [{"value": value} for value in values.slice(start, PIECE).to_pylist()]
        if producer.produce_batch(topic, batch, number % PARTITIONS) < len(batch):
            raise KafkaException(next(message["_error"] for message in batch if "_error" in message))
        while len(producer) > 5 * PIECE:
            producer.poll(0.01)
    if producer.flush(WAIT_S):
        msg = f"topic {topic!r}: the broker did not take all values"
        raise RunError(msg)


def _counted(servers: str, topic: str, form: Form) -> int:
    """Number of output values; each must have been counted once."""
    keys = set()
    for message in itertools.chain.from_iterable(read_messages(servers, topic)):
        value = message.value() or b""
        _check(
            len(value) == 1 + (SAVED_BYTES if form == "tagged" else 0) and value[-1:] == b"1",
            f"Kafka, {form}: {value!r} as a count",
        )
        keys.add(message.key())
    return len(keys)


def _check(is_right: bool, where: str) -> None:
    if not is_right:
        msg = f"{where}: the output is wrong, so its speed is meaningless"
        raise RunError(msg)
