"""A flow with credentials uses a broker with authentication and encryption; others are rejected."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from flowcore import Flow, KafkaTopic, Parquet
from flowcore.delivery import LedgerTerms, ledger_topic
from flowcore.elements import Watermark
from flowcore.errors import BrokerAccessError, OutageError, UnreachableBrokerError
from flowcore.kafka.broker import free_port
from flowcore.kafka.elements import ElementWriter
from flowcore.kafka.latency_collector import LatencyCollector
from flowcore.kafka.markers import MarkerSource
from flowcore.kafka.open_transactions import open_transactions
from flowcore.kafka.security import BrokerAddress, Security, task_login
from flowcore.kafka.topics import end_offsets, ensure_topics, grow_topic, topic_limits
from flowcore.kafka.transactions import LEDGER_CONFIGS, MessageBatch, TransactionalWriter
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.run.bounded_stage import run_bounded
from flowcore.spark.run.flow import run_plan
from flowcore.spark.run.live_stage import LiveRun
from flowcore.watermarks import bounded_out_of_orderness
from pipelines.auctions.readers import read_values
from pipelines.nexmark.feed import feed
from tests.kafka.secured_broker import (
    KEY_PASSWORD,
    PASSWORD,
    WAYS,
    SecuredBroker,
    secured_broker,
    secured_container,
)
from tests.sampling import sample

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

GUESS = "gu3ss"
KINDS = ("process", "container")
each_kind = pytest.mark.parametrize("broker", KINDS, indirect=True)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A broker with all listeners as a process; its topic ``in`` has thirty records."""
    with secured_broker(tmp_path_factory.mktemp("secured")) as started:
        yield _filled(started)


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """The same in a container."""
    with secured_container(tmp_path_factory.mktemp("secured")) as started:
        yield _filled(started)


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> SecuredBroker:
    """The broker of this kind; the process unless the test asks for another one."""
    started: SecuredBroker = request.getfixturevalue(getattr(request, "param", "process"))
    return started


def _filled(broker: SecuredBroker) -> SecuredBroker:
    ensure_topics(broker.plain, {"in": 1})
    feed(broker.plain, "in", [pa.table({"id": range(30)})], None, key="id")
    return broker


def settings_of(broker: SecuredBroker, way: str, folder: Path, **more: str) -> Settings:
    """The settings of a run that authenticates in this way."""
    found = Settings.of(
        {
            **broker.settings(way),
            "metrics.latency.interval": "0",
            "execution.realtime.batch-duration": "5 s",
            **more,
        },
        environment={},
    )
    return replace(found, state_dir=folder)


def address_of(settings: Settings) -> BrokerAddress:
    """The broker's address with its security."""
    return BrokerAddress(settings.bootstrap_servers or "", Security.of(settings))


@each_kind
@pytest.mark.parametrize("way", WAYS)
def test_every_client_authenticates(broker: SecuredBroker, way: str, tmp_path: Path) -> None:
    """Administration, feeder, reader, markers, their collector, elements and transactions."""
    address, topic = address_of(settings_of(broker, way, tmp_path)), way.replace(", ", "-").replace(" ", "-")
    ledger = ledger_topic("clients", topic)
    ensure_topics(address, {topic: 1})
    ensure_topics(address, {ledger: 1}, LEDGER_CONFIGS)
    grow_topic(address, topic, 2)
    feed(address, topic, [pa.table({"id": range(20)})], None, key="id")
    writer = TransactionalWriter(
        task_login(address), "clients", topic, "here", LedgerTerms(1, 0), 512 << 10, 1 << 20
    )
    written = writer.write(0, 0, [MessageBatch([(topic, b"k", b"{}", None, 0)], 1, 1)])
    with ElementWriter(address, {KafkaTopic(f"{topic}.elements"): 1}, "clients") as elements:
        ensure_topics(address, {f"{topic}.elements": 1})
        elements.write([Watermark(1_000)])
        lost = elements.has_undelivered
    with LatencyCollector(address, {topic: "out"}) as collector:
        with MarkerSource(address, topic, "clients/in", timedelta(milliseconds=50)) as markers:
            deadline = time.monotonic() + 10
            while markers.delivered < 4:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert collector.wait_ready(10)

    assert (written.written, written.refusal, lost) == ({topic: 1}, None, False)
    assert len(list(read_values(address, topic))) == 21
    assert topic_limits(address, [topic])[topic].max_message_bytes > 0
    assert open_transactions(address, "clients", [topic], 5) == {topic: []}


@pytest.mark.parametrize(
    ("way", "broker"),
    sample(
        itertools.product(WAYS, KINDS), ("mutual, encrypted key", "process"), ("oauthbearer", "container")
    ),
    indirect=["broker"],
)
def test_flow_writes_exactly_once(
    broker: SecuredBroker, way: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's source reads; the tasks write in transactions, and Spark's own sink dead letters."""
    name = f"flow-{list(WAYS).index(way)}"
    flow = Flow(name)
    source = flow.read("in", KafkaTopic("in", schema="id BIGINT"))
    source.write("out", KafkaTopic(name, delivery="exactly-once"))
    flow.read("again", KafkaTopic("in", schema="id BIGINT")).where("id < 9").write(
        "n", KafkaTopic(f"{name}-n")
    )
    settings = settings_of(broker, way, tmp_path)
    with LiveRun(plan_flow(flow, "slice", settings), Context(spark, settings, name)) as run:
        assert run.wait(60)

    address = address_of(settings)
    assert len(list(read_values(address, name))) == 30
    assert len(list(read_values(address, f"{name}-n"))) == 9


def test_login_is_not_in_a_log_with_everything(
    broker: SecuredBroker, spark: SparkSession, tmp_path: Path
) -> None:
    """Spark hides a password in what it logs, and no client secret."""
    flow = Flow("logged")
    flow.read("past", KafkaTopic("in", schema="id BIGINT", until="latest")).write("copy", Parquet("copy"))
    flow.read("in", KafkaTopic("in", schema="id BIGINT")).write("out", KafkaTopic("logged"))
    settings = settings_of(broker, "oauthbearer", tmp_path, **{"data.dir": str(tmp_path)})
    context = spark.sparkContext
    log = Path(context._jvm.System.getProperty("flowcore.log"))  # type: ignore[union-attr]
    before = log.stat().st_size if log.exists() else 0
    context.setLogLevel("DEBUG")
    try:
        run_plan(plan_flow(flow, "slice", settings), Context(spark, settings, "logged"))
    finally:
        context.setLogLevel("WARN")
    with log.open("rb") as opened:
        opened.seek(before)
        added = opened.read()

    assert [word in added for word in (b" DEBUG ", b"clientSecret", PASSWORD.encode())] == [
        True,
        False,
        False,
    ]


def test_live_flow_tracks_latency_and_watermarks(
    broker: SecuredBroker, spark: SparkSession, tmp_path: Path
) -> None:
    """Markers, their collector, watermarks and a query in real time use the login of the run."""
    strategy = bounded_out_of_orderness(timedelta(seconds=1))
    flow = Flow("f")
    bids = flow.read("in", KafkaTopic("in", schema="id BIGINT", watermark=strategy))
    bids.write("out", KafkaTopic("out", elements="tagged"))
    settings = settings_of(broker, "scram-512", tmp_path, **{"metrics.latency.interval": "1 s"})
    address = address_of(settings)
    with LiveRun(plan_flow(flow, settings=settings), Context(spark, settings, "f")) as run:
        deadline = time.monotonic() + 300
        while not (run.latency() and sum(end_offsets(address, "out").values()) >= 30):
            assert not run.wait(0.2)
            assert time.monotonic() < deadline

    assert sum(end_offsets(address, "out.events").values()) > 0


def test_bounded_flow_copies_a_topic(broker: SecuredBroker, spark: SparkSession, tmp_path: Path) -> None:
    """Spark's reader and writer of bounded stages log in too."""
    flow = Flow("g")
    flow.read("in", KafkaTopic("in", schema="id BIGINT", until="latest")).write("copy", KafkaTopic("copy"))
    settings = settings_of(broker, "plain", tmp_path)
    (stage,) = plan_flow(flow, settings=settings).bounded
    run_bounded(stage, Context(spark, settings, "g"))

    assert sum(end_offsets(address_of(settings), "copy").values()) == 30


REFUSALS = {
    "expired": ("EXPIRED", {}, r"not trusted \(certificate has expired\).*; renew"),
    "other name": ("ELSEWHERE", {}, r"not trusted \(.*not valid for '127\.0\.0\.1'\).*advertised\.listeners"),
    "unknown authority": ("tls", {"kafka.ssl.ca": "{other}"}, r"not trusted \(.*issuer.*; set kafka\.ssl"),
    "system's authorities": ("tls", {"kafka.ssl.ca": None}, r"not trusted .* the system's authorities"),
    "file without certificate": ("tls", {"kafka.ssl.ca": "{key}"}, r"kafka\.ssl\.ca=.* has no certificate"),
    "no client certificate": (
        "mutual", {"kafka.ssl.certificate": None, "kafka.ssl.key": None},
        r"refuses the client's certificate .*kafka\.ssl\.certificate is not set",
    ),
    "unknown client": (
        "mutual", {"kafka.ssl.certificate": "{stranger}", "kafka.ssl.key": "{stranger.key}"},
        r"refuses the client's certificate .*stranger\.pem'",
    ),
    "other key": ("mutual", {"kafka.ssl.certificate": "{stranger}"}, r"cannot be used.*belong together"),
    "key password": ("mutual, encrypted key", {"kafka.ssl.key-password": GUESS}, r"kafka\.ssl\.key-password"),
    "plain password": ("plain", {"kafka.sasl.password": GUESS}, r"refuses the login of 'ann' by PLAIN"),
    "scram password": ("scram-256", {"kafka.sasl.password": GUESS}, r"login of 'ann' by SCRAM-SHA-256"),
    "mechanism": ("clear", {"kafka.sasl.mechanism": "SCRAM-SHA-256"}, r"enables .*mechanism=SCRAM"),
    "client secret": ("oauthbearer", {"kafka.sasl.password": GUESS}, r"no token \(it answers 401"),
    "issuer": (
        "oauthbearer", {"kafka.sasl.oauthbearer.ca": "{other}"},
        r"gives no token \(.*certificate verify failed.*check .* kafka\.sasl\.oauthbearer\.ca",
    ),
}  # fmt: skip


@each_kind
@pytest.mark.parametrize("refused", REFUSALS)
def test_refusal_says_what_is_wrong(broker: SecuredBroker, refused: str) -> None:
    """One line, of a type that is not an outage, without a password."""
    way, changed, message = REFUSALS[refused]
    files = {"other": "other", "key": "ca.key", "stranger": "stranger", "stranger.key": "stranger.key"}
    keys: dict[str, str | None] = {**broker.settings(way)}
    for key, value in changed.items():
        name = (value or "").strip("{}")
        keys[key] = broker.certificates.path(files[name]) if name in files else value
    given = {key: value for key, value in keys.items() if value is not None}

    with pytest.raises(BrokerAccessError, match=message) as raised:
        end_offsets(address_of(Settings.of(given, environment={})), "in")

    assert not isinstance(raised.value, OutageError)
    assert "\n" not in str(raised.value)
    assert not any(secret in str(raised.value) for secret in (PASSWORD, GUESS, KEY_PASSWORD))


def test_issuer_that_is_away_is_an_outage(broker: SecuredBroker) -> None:
    """A run waits for it, as for a broker."""
    url = f"http://127.0.0.1:{free_port()}/token"
    keys = {**broker.settings("oauthbearer"), "kafka.sasl.oauthbearer.token.endpoint.url": url}

    with pytest.raises(UnreachableBrokerError, match=r"the issuer .* gives no token \(.*refused"):
        end_offsets(address_of(Settings.of(keys, environment={})), "in")


def test_flow_does_not_start_without_a_valid_login(
    broker: SecuredBroker, spark: SparkSession, tmp_path: Path
) -> None:
    """The error contains no password."""
    flow = Flow("h")
    flow.read("in", KafkaTopic("in", schema="id BIGINT")).write("out", KafkaTopic("out"))
    settings = settings_of(broker, "plain", tmp_path, **{"kafka.sasl.password": GUESS})
    plan = plan_flow(flow, settings=settings)

    with pytest.raises(BrokerAccessError) as raised, LiveRun(plan, Context(spark, settings, "h")):
        pass

    assert GUESS not in str(raised.value)
