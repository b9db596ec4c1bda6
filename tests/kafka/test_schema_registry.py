"""A real schema registry behind TLS and a login: what is refused at the start, and schemas that evolve."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from flowcore import Flow, KafkaTopic
from flowcore.errors import RegistryError, UnreachableRegistryError
from flowcore.kafka.broker import free_port
from flowcore.kafka.topic_schemas import TopicSchemas
from flowcore.planner import plan_flow
from flowcore.serializers.formats import ConfluentAvroFormat
from flowcore.settings import Settings
from flowcore.spark.run.live_topics import require_schemas
from tests.kafka.registry_process import RunningRegistry, registry_process
from tests.waiting import run_until

if TYPE_CHECKING:
    from flowcore.api.connectors import Delivery
    from flowcore.planner.model import Mode
    from tests.kafka.conftest import Live

pytestmark = pytest.mark.skipif(
    shutil.which("nginx") is None and not os.environ.get("CI"), reason="nginx is not installed"
)

ID = {"name": "id", "type": "long"}
PRICE = {"name": "price", "type": "double"}
NOTE = {"name": "note", "type": "string", "default": "-"}


@pytest.fixture(scope="module")
def registry() -> Iterator[RunningRegistry]:
    """The registry of this module's tests; each uses subjects of its own."""
    with registry_process() as running:
        yield running


def _schema(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Bid", "namespace": "shop", "fields": list(fields)}


def _topic(columns: str = "id BIGINT NOT NULL", **options: Any) -> KafkaTopic:
    name = f"bids-{secrets.token_hex(4)}"
    return KafkaTopic(name, schema=columns, format="avro-confluent", format_options=options)


def _settings(*given: dict[str, str]) -> Settings:
    return Settings.of(*given, environment={})


@pytest.mark.parametrize("way", ["open", "basic", "bearer"])
def test_registry_gives_ids_by_each_login(way: str, registry: RunningRegistry) -> None:
    """Over TLS with a name and a password, or a token."""
    topic, settings = _topic(), _settings(getattr(registry, way))
    number = registry.register(f"{topic.name}-value", _schema(ID))

    read, written = TopicSchemas().readable(topic, settings), TopicSchemas().writable(topic, settings)

    assert read.format_options["schema_id"] == written.format_options["schema_id"] == number
    assert [*read.format_options["writers"]] == [number]


NOT_TRUSTED = r"registry https://\S+ is not trusted \({}.*schema-registry\.ssl\.ca\.location"
REFUSED: dict[str, tuple[str, dict[str, str], str]] = {
    "password": (
        "basic", {"schema-registry.basic.auth.user.info": "flow:wrong"},
        r"refuses the login by schema-registry\.basic\.auth\.user\.info for subject 'bids-\w+-value' \(401\)",
    ),
    "token": (
        "bearer", {"schema-registry.bearer.auth.token": "wrong"},
        r"refuses the login by schema-registry\.bearer\.auth\.token .* \(401\)",
    ),
    "no login": (
        "basic", {"schema-registry.basic.auth.user.info": ""},
        r"refuses requests without a login.* set schema-registry\.basic",
    ),
    "authority": (
        "basic", {"schema-registry.ssl.ca.location": "other"}, NOT_TRUSTED.format("unable to get local"),
    ),
    "name": ("basic", {"schema-registry.url": "localhost"}, NOT_TRUSTED.format("Hostname mismatch")),
    "clear text": ("basic", {"schema-registry.url": "http"}, r"answered with 400 .*check schema-"),
    "path": ("open", {"schema-registry.url": "/x"}, r"answered with 404 .*where /subjects begins"),
    "subject": ("basic", {}, "subject 'bids-\\w+-value' has no version at https.*start its producer first"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_registry_that_refuses_is_one_line(
    case: tuple[str, dict[str, str], str], registry: RunningRegistry
) -> None:
    """It says what was given and what to do, without a secret."""
    way, changes, message = case
    given = getattr(registry, way)
    url = given["schema-registry.url"]
    urls = {"localhost": url.replace("127.0.0.1", "localhost"), "http": url.replace("https", "http")}
    values = {**urls, "/x": f"{url}/x", "other": registry.other_ca}
    settings = _settings(given, {key: values.get(value, value) for key, value in changes.items()})

    with pytest.raises(RegistryError, match=message) as caught:
        TopicSchemas().require([_topic()], [], settings)

    assert "\n" not in str(caught.value)
    assert not {"wrong", "t0ken", "w0rd"} & {*str(caught.value).replace("'", " ").split()}


def test_registry_that_is_away_is_an_outage() -> None:
    """Of a plan that was made without it: at once, with its address."""
    settings = _settings({"schema-registry.url": f"https://127.0.0.1:{free_port()}"})
    flow = Flow("f")
    flow.read("bids", _topic()).write("out", KafkaTopic("out"))
    plan, began = plan_flow(flow, settings=settings), time.monotonic()

    with pytest.raises(UnreachableRegistryError, match=r"registry https://\S+ does not answer .*refused"):
        require_schemas(plan, settings)

    assert time.monotonic() - began < 30


def test_sink_is_registered_only_if_its_rule_and_a_setting_allow_it(registry: RunningRegistry) -> None:
    """The same schema has the same id afterwards; an incompatible one is refused."""
    topic, asks = _topic(), _settings(registry.basic)
    registers = replace(asks, registers_schemas=True)

    with pytest.raises(RegistryError, match=r"does not have the schema of its columns.*auto\.register"):
        TopicSchemas().writable(topic, asks)
    number = TopicSchemas().writable(topic, registers).format_options["schema_id"]
    again = TopicSchemas().writable(topic, asks).format_options["schema_id"]
    registry.set_rule(f"{topic.name}-value", "BACKWARD")
    other = replace(topic, schema="id BIGINT NOT NULL, price DOUBLE NOT NULL")
    with pytest.raises(RegistryError, match=r"the rule of subject .* refuses .*'price' is not written"):
        TopicSchemas().writable(other, registers)

    assert number == again


def test_source_reads_versions_that_evolve_by_the_rules(registry: RunningRegistry) -> None:
    """A field with a default may be added; one without is refused until the old version is deleted."""
    topic, settings = _topic(), _settings(registry.bearer)
    subject = f"{topic.name}-value"
    ids = [registry.register(subject, _schema(ID)), registry.register(subject, _schema(ID, NOTE))]

    found = TopicSchemas().readable(topic, settings).format_options
    registry.register(subject, _schema(ID, PRICE))
    with pytest.raises(RegistryError, match=r"version 1 \(id \d+\) .* as version 3, .*'price' is not"):
        TopicSchemas().readable(topic, settings)
    old = TopicSchemas().readable(replace(topic, format_options={"schema": _schema(ID)}), settings)
    for version in (1, 2):
        registry.delete(subject, version)
    last = TopicSchemas().readable(topic, settings).format_options

    assert [*found["writers"]] == ids
    assert len(old.format_options["writers"]) == 3
    assert [*last["writers"]] == [last["schema_id"]]


def _values(live: Live, topic: KafkaTopic, settings: Settings) -> list[Any]:
    """The values of a topic, as the newest version of its subject."""
    options = {**TopicSchemas().readable(topic, settings).format_options}
    reader = ConfluentAvroFormat(**options)
    return [reader.decode(record.value or b"") for record in live.records(topic)]


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize(
    ("mode", "delivery"),
    [
        ("realtime", "at-least-once"),
        pytest.param("micro-batch", "exactly-once", marks=pytest.mark.thorough),
    ],
)
def test_live_query_takes_up_a_schema_of_a_running_stream(
    mode: Mode, delivery: Delivery, live: Live, registry: RunningRegistry
) -> None:
    """Values of a version that was registered since the start are read, and no record is lost or bad.

    Only that of an id that the subject does not have is: it keeps its bytes, and the query goes on.
    """
    live.settings = replace(live.settings, registers_schemas=True, **_typed(registry.basic))
    columns = "id BIGINT NOT NULL"
    bids = live.topic("bids", schema=columns, format="avro-confluent")
    out = live.topic("out", schema=columns, format="avro-confluent", delivery=delivery)
    subject = f"{bids.name}-value"
    first, second = _schema(ID), _schema(ID, NOTE)
    old = ConfluentAvroFormat(first, registry.register(subject, first))
    flow = Flow("f")
    flow.read("bids", bids).select("id * 10 AS id").write("out", out)
    live.send(bids, old.encode({"id": 1}))
    strange = b"\0\0\1\0\0\2"

    def written() -> set[str]:
        return {record.id for record in live.records(out)}

    def evolve(run: Any) -> None:
        run_until(run, lambda: len(written()) == 1)
        new = ConfluentAvroFormat(second, registry.register(subject, second))
        live.send(bids, old.encode({"id": 2}), new.encode({"id": 3, "note": "x"}), old.encode({"id": 4}))
        run_until(run, lambda: len(written()) == 4)
        live.send(bids, strange, new.encode({"id": 5, "note": ""}))
        run_until(run, lambda: len(written()) == 5)

    live.run(flow, mode, evolve)

    found = [value["id"] for value in _values(live, out, live.settings)]
    assert (found if delivery == "exactly-once" else sorted({*found})) == [10, 20, 30, 40, 50]
    dead = live.records(bids.dead_letter)[0]
    assert {record.value for record in live.records(bids.dead_letter)} == {strange}
    assert b"it has schema 65536, and known are" in dead.headers["flowcore-reason"]


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.thorough
def test_bounded_stage_reads_and_writes_by_the_registry(live: Live, registry: RunningRegistry) -> None:
    """Both versions of its input are read, and its output has the registered id."""
    live.settings = replace(live.settings, registers_schemas=True, **_typed(registry.basic))
    columns = "id BIGINT NOT NULL, note STRING"
    bids = live.topic("bids", schema=columns, format="avro-confluent", until="latest")
    out = live.topic("out", schema=columns, format="avro-confluent")
    schemas = _schema(ID), _schema(ID, NOTE)
    old, new = (ConfluentAvroFormat(each, registry.register(f"{bids.name}-value", each)) for each in schemas)
    live.send(bids, old.encode({"id": 1}), new.encode({"id": 2, "note": "x"}), b"\0\0\1\0\0\2")
    flow = Flow("f")
    flow.read("bids", bids).write("out", out)

    live.run(flow)

    found = sorted(_values(live, out, live.settings), key=lambda value: int(value["id"]))
    assert found == [{"id": 1, "note": "-"}, {"id": 2, "note": "x"}]
    assert [record.value for record in live.records(bids.dead_letter)] == [b"\0\0\1\0\0\2"]


def _typed(given: dict[str, str]) -> dict[str, Any]:
    found = _settings(given)
    names = ("registry_url", "registry_login", "registry_ca")
    return {name: getattr(found, name) for name in names}
