"""Fuzzed messages among good ones: every good one must be joined once, every bad one must be a dead letter.

There are two topics, one of plain JSON and one of tagged elements, and their companion topics, whose events
are fuzzed too. One slice with latency tracking joins them with history. Every good record must be emitted
once, with the values computed here. Every bad message must be a dead letter with its exact bytes and
coordinates.

`_fuzzed_messages` decides in Python which messages are bad, and documents what it does not generate: above
all several JSON objects in one value, of which Spark reads the first.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from random import Random

import click
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import KafkaException, Producer
from rich.console import Console
from rich.progress import Progress, TaskID

from flowcore import Flow, KafkaTopic, Parquet
from flowcore.api.schema import Schema
from flowcore.elements import LatencyMarkerEvent
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.markers import ensure_companion
from flowcore.kafka.topics import ensure_topics
from flowcore.planner import plan_flow
from flowcore.planner.plan import Plan
from flowcore.serializers import LatencyMarkerEventSerializer, Tag
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.run.flow import open_context, run_plan
from flowcore.spark.run.live_stage import LiveRun
from pipelines.auctions.readers import read_messages, read_values
from pipelines.benchmark import this_commit, this_machine
from tests.benchmarks._fuzzed_messages import Fuzzer

PARTITIONS = 2
COLUMNS = "id BIGINT NOT NULL, shop STRING, price DOUBLE"
SHOPS = {"a": "Bern", "b": "Basel", "ü": "Zürich", "\U0001f600": None}
UNKNOWN_SHOP = "nobody's"
HEAD_BYTES = 9
OVERSIZE_BYTES = 1 << 20
LARGEST_BYTES = 1_048_588 - 100  # the broker's limit, less the client's overhead
EVENT_SHARE = 0.1
PIECE = 5_000
WAIT_S = 30.0
Show = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Load:
    """Numbers of good, bad and oversized bad messages, and the seed."""

    good: int
    bad: int
    oversize: int
    seed: int


@dataclass(slots=True)
class Sent:
    """Bad messages that were sent to a topic: counts by digest and by kind of fuzzing."""

    digests: Counter[bytes] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, message: bytes | None) -> bytes | None:
        self.digests[_digest(message)] += 1
        self.kinds[kind] += 1
        return message


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of one topic; all but the first three are 0 without errors."""

    good: int
    bad: int
    kinds: dict[str, int]
    missing: int
    duplicated: int
    wrong: int
    bad_missing: int
    bad_unexpected: int
    coordinates_repeated: int

    @property
    def ok(self) -> bool:
        """Whether every good message was joined once, and every bad one is a dead letter."""
        return not (
            self.missing
            or self.duplicated
            or self.wrong
            or self.bad_missing
            or self.bad_unexpected
            or self.coordinates_repeated
        )


@click.command()
@click.option("--good", default=1_000_000, show_default=True, help="Good messages.")
@click.option("--bad", default=100_000, show_default=True, help="Fuzzed messages among them.")
@click.option("--oversize", default=20, show_default=True, help="Fuzzed messages of up to 1 MiB.")
@click.option("--seed", default=1, show_default=True, help="Seed of the random messages.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(good: int, bad: int, oversize: int, seed: int, *, as_json: bool) -> None:
    """Check that all good messages are joined once, and all fuzzed ones are dead letters.

    The exit code is 1 if not.
    """
    load = Load(good, bad, oversize, seed)
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="flowcore-fuzz-", ignore_cleanup_errors=True)
            )
        )
        progress = stack.enter_context(Progress(console=Console(stderr=True), transient=True))
        steps: dict[str, TaskID] = {}

        def show(step: str, done: int, total: int) -> None:
            if step not in steps:
                steps[step] = progress.add_task(step, total=total)
            progress.update(steps[step], completed=done)

        broker = stack.enter_context(EmbeddedBroker())
        settings = Settings.of(
            {
                "kafka.bootstrap.servers": broker.bootstrap_servers,
                "data.dir": folder,
                "state.dir": folder / "state",
                "metrics.latency.interval": "1 h",
            }
        )
        flow, topics = declare(folder, secrets.token_hex(4))
        sent = [send(broker.bootstrap_servers, topic, load, show) for topic in topics]
        plan = plan_flow(flow, "slice", settings)
        with open_context(plan, settings) as context:
            seconds = run_slice(plan, context)
        outcomes: dict[str, Outcome] = {
            topic.elements: check(broker.bootstrap_servers, topic, load, one, show)
            for topic, one in zip(topics, sent, strict=True)
        }
    _report(load, seconds, outcomes, as_json=as_json)
    sys.exit(0 if all(outcome.ok for outcome in outcomes.values()) else 1)


def declare(folder: Path, suffix: str) -> tuple[Flow, list[KafkaTopic]]:
    """Declare the flow and its topics, and write its history."""
    (folder / "visits").mkdir()
    names = [name for name in SHOPS for _ in range(3)]
    visits = pa.table({"shop": names, "city": [SHOPS[name] for name in names]})
    pq.write_table(visits, folder / "visits" / "visits.parquet")
    flow = Flow("fuzz")
    visited = flow.read("visits", Parquet("visits", schema="shop STRING, city STRING"))
    shops = visited.aggregate(by="shop", city="max(city)", visits="count(*)", name="shops")
    topics = [KafkaTopic(f"{kind}-{suffix}", COLUMNS, elements=kind) for kind in ("plain", "tagged")]
    for topic in topics:
        source = flow.read(topic.elements, topic)
        source.join(shops, on="shop", how="left").write(f"{topic.elements}_out", _out(topic))
    return flow, topics


def send(servers: str, topic: KafkaTopic, load: Load, show: Show = lambda *_: None) -> Sent:
    """Send good and bad messages in random order; every topic has the same share of both."""
    ensure_topics(servers, {topic.name: PARTITIONS})
    ensure_companion(servers, topic.name)
    sent = Sent()
    good, bad = _share(load.good), _share(load.bad)
    events = int(bad * EVENT_SHARE)
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "message.max.bytes": 2 << 20,
            "linger.ms": 20,
            "enable.idempotence": True,
            "log_level": 0,
        }
    )
    messages = _messages(topic, load, sent, good, bad - events)
    for done in _produce(producer, topic.name, messages):
        show(f"send {topic.elements}", done, good + bad)
    list(_produce(producer, topic.events, _events(topic, load, sent, events)))
    if producer.flush(WAIT_S):
        msg = f"topic {topic.name!r}: the broker did not take all messages"
        raise click.ClickException(msg)
    return sent


def run_slice(plan: Plan, context: Context) -> float:
    """Run the bounded stage, then the slice; return the seconds of the slice."""
    run_plan(replace(plan, live=None), context)
    began = time.monotonic()
    with LiveRun(plan, context) as run:
        run.wait()
    return time.monotonic() - began


def check(servers: str, topic: KafkaTopic, load: Load, sent: Sent, show: Show = lambda *_: None) -> Outcome:
    """Read the output for a topic's messages, and compare."""
    copies: Counter[int] = Counter()
    wrong = 0
    good = _share(load.good)
    for done, value in enumerate(read_values(servers, _out(topic).name), 1):
        row = json.loads(value)
        copies[row["id"]] += 1
        wrong += row != _joined(row["id"])
        show(f"check {topic.elements}", done, good)
    dead_letters: Counter[bytes] = Counter()
    coordinates: Counter[tuple[object, ...]] = Counter()
    for message in chain.from_iterable(read_messages(servers, topic.dead_letter)):
        dead_letters[_digest(message.value())] += 1
        headers = dict(message.headers() or ())
        coordinates[tuple(headers[f"flowcore-{name}"] for name in ("topic", "partition", "offset"))] += 1
    return Outcome(
        good=good,
        bad=sent.digests.total(),
        kinds=dict(sent.kinds),
        missing=sum(number not in copies for number in range(good)),
        duplicated=copies.total() - len(copies),
        wrong=wrong,
        bad_missing=(sent.digests - dead_letters).total(),
        bad_unexpected=(dead_letters - sent.digests).total(),
        coordinates_repeated=coordinates.total() - len(coordinates),
    )


def _out(topic: KafkaTopic) -> KafkaTopic:
    return KafkaTopic(f"{topic.name}-out")


def _share(count: int) -> int:
    return count // 2


def _shop(number: int) -> str | None:
    return [*SHOPS, UNKNOWN_SHOP, None][number * 7 % (len(SHOPS) + 2)]


def _price(number: int) -> float | None:
    return None if number % 11 == 0 else (number % 1_000) * 0.25


def _good(number: int) -> bytes:
    """A record in one of several JSON spellings."""
    row: dict[str, object] = {"id": number, "shop": _shop(number), "price": _price(number)}
    match number % 5:
        case 0:
            row = dict(reversed(row.items())) | {"more": {"x": [number, None, "}"]}}
        case 1:
            row = {name: field for name, field in row.items() if field is not None}
        case 2:
            return b" \n" + json.dumps(row, indent=1).encode() + b"\r\n"
        case 3:
            return json.dumps(row).encode()
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()


def _joined(number: int) -> dict[str, object]:
    """The expected output; null fields are omitted."""
    shop = _shop(number)
    row = {"id": number, "shop": shop, "price": _price(number), "city": SHOPS.get(shop or "")}
    row["visits"] = 3 if shop in SHOPS else None
    return {name: field for name, field in row.items() if field is not None}


def _tagged(number: int, value: bytes) -> bytes:
    if number % 3 == 0:
        return bytes((Tag.RECORD,)) + value
    return bytes((Tag.RECORD_WITH_TIMESTAMP,)) + (number - 1_000).to_bytes(8, "big", signed=True) + value


def _messages(topic: KafkaTopic, load: Load, sent: Sent, good: int, bad: int) -> Iterator[bytes | None]:
    random = Random(f"{load.seed}/{topic.elements}")  # noqa: S311 - reproducible, not secret
    fuzzer = Fuzzer(_schema(topic), random)
    is_tagged = topic.elements == "tagged"
    fuzz = fuzzer.element if is_tagged else fuzzer.value
    large = set(random.sample(range(bad), min(load.oversize // 2, bad)))
    left, number = bad, 0
    while left or number < good:
        message = _good(number)
        if is_tagged:
            message = _tagged(number, message)
        if random.random() * (left + good - number) >= left:
            number += 1
            yield message
            continue
        left -= 1
        if left in large:
            size = (
                LARGEST_BYTES if left == max(large) else random.randrange(OVERSIZE_BYTES // 2, OVERSIZE_BYTES)
            )
            oversize = fuzzer.oversize(min(size, LARGEST_BYTES) - is_tagged)
            yield sent.add("oversize", b"\x01" + oversize if is_tagged else oversize)
        else:
            yield sent.add(*fuzz(message))


def _events(topic: KafkaTopic, load: Load, sent: Sent, bad: int) -> Iterator[bytes | None]:
    random = Random(f"{load.seed}/{topic.events.partition('-')[0]}/events")  # noqa: S311 - as above
    fuzzer = Fuzzer(_schema(topic), random)
    serializer = LatencyMarkerEventSerializer()
    for number in range(bad):
        good = serializer.encode(LatencyMarkerEvent(number, f"fuzz/ü{number % 7}", number % PARTITIONS))
        kind, event = fuzzer.event(good)
        yield sent.add(f"event: {kind}", event)
        if number % 10 == 0:
            yield good


def _schema(topic: KafkaTopic) -> Schema:
    return Schema.parse(topic.schema or "")


def _produce(producer: Producer, topic: str, messages: Iterable[bytes | None]) -> Iterator[int]:
    """Send messages, round robin over the partitions; yields the number so far."""
    messages = iter(messages)
    done = 0
    while piece := [{"value": value} for value in islice(messages, PIECE)]:
        for partition in range(PARTITIONS):
            batch = piece[partition::PARTITIONS]
            if producer.produce_batch(topic, batch, partition) < len(batch):
                raise KafkaException(next(message["_error"] for message in batch if "_error" in message))
        done += len(piece)
        while len(producer) > 10 * PIECE:
            producer.poll(0.01)
        producer.poll(0)
        yield done


def _digest(message: bytes | None) -> bytes:
    return b"" if message is None else hashlib.blake2b(message, digest_size=16).digest()


def _report(load: Load, seconds: float, outcomes: dict[str, Outcome], *, as_json: bool) -> None:
    names = [name for name in Outcome.__dataclass_fields__ if name != "kinds"]
    totals = {name: sum(getattr(one, name) for one in outcomes.values()) for name in names}
    found = {
        "name": "fuzz",
        "workload": f"{load.good:,} good messages and {load.bad:,} fuzzed ones (seed {load.seed}), half of "
        "them plain, half tagged, a tenth of the fuzzed ones on the companion topics; one slice with a left "
        "join, latency tracked",
        "machine": this_machine(),
        "commit": this_commit(),
        **totals,
        "seconds": round(seconds, 1),
        "kinds": dict(sorted(sum((Counter(one.kinds) for one in outcomes.values()), Counter()).items())),
        "ok": all(one.ok for one in outcomes.values()),
    }
    if as_json:
        click.echo(json.dumps(found))
        return
    click.echo(f"fuzz: {found['workload']}\nmachine: {found['machine']}\ncommit: {found['commit']}")
    for name, count in totals.items():
        click.echo(f"  {name.replace('_', ' '):<22} {count:>10,}")
    for kind, count in found["kinds"].items():
        click.echo(f"    {kind:<36} {count:>8,}")
    click.echo(f"  slice: {seconds:.1f} s")
    click.echo("every good one joined once, every bad one a dead letter" if found["ok"] else "WRONG")
