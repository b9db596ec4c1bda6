"""Schemas of topics by a registry in memory: which ids a run takes, and when it asks again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flowcore import KafkaTopic
from flowcore.errors import (
    FlowcoreError,
    FormatError,
    RegistryError,
    SerializationError,
    SettingsError,
    UnreachableRegistryError,
)
from flowcore.kafka.schema_registry import SchemaRegistry, SchemaVersion
from flowcore.kafka.topic_schemas import TopicSchemas, resolve_sink, resolve_source
from flowcore.serializers.formats import SubjectAvroFormat
from flowcore.settings import Settings

SETTINGS = Settings.of({"schema-registry.url": "http://127.0.0.1:1"}, environment={})
ID = {"name": "id", "type": "long"}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}
CANARY = "canary-4711"


def _schema(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Bid", "fields": list(fields)})


class _Registry:
    """The versions of each subject; every schema is compatible if ``allows``."""

    url = "http://registry"

    def __init__(self, *schemas: str, allows: bool = True) -> None:
        self.schemas = [*schemas]
        self.allows = allows
        self.asked = 0

    def versions(self, subject: str) -> tuple[SchemaVersion, ...]:
        self.asked += 1
        assert subject == "bids-value"
        return tuple(SchemaVersion(n + 1, n + 10, schema) for n, schema in enumerate(self.schemas))

    def find_id(self, subject: str, schema: str) -> int | None:
        found = [each.id for each in self.versions(subject) if each.schema == schema]
        return found[0] if found else None

    def is_compatible(self, _subject: str, _schema: str) -> bool:
        return self.allows

    def register(self, subject: str, schema: str) -> int:
        self.schemas.append(schema)
        return self.versions(subject)[-1].id


def _topic(columns: str = "id BIGINT", /, **options: Any) -> KafkaTopic:
    return KafkaTopic("bids", schema=columns, format="avro-confluent", format_options=options)


def _schemas(registry: _Registry) -> TopicSchemas:
    @contextmanager
    def connect(_settings: Settings) -> Iterator[_Registry]:
        yield registry

    return TopicSchemas(connect)


def test_source_reads_all_versions_as_the_newest() -> None:
    """A declared schema replaces the newest; it has an id only if it is registered."""
    old, new = _schema(ID), _schema(ID, NOTE)
    registry = _Registry(old, new)
    wide = _schema(ID, NOTE, {"name": "more", "type": "int", "default": 0})

    newest = resolve_source(_topic(), registry).format_options
    declared = resolve_source(_topic(schema=old), registry).format_options
    unknown = resolve_source(_topic(schema=wide), registry).format_options

    assert newest == {"schema": new, "schema_id": 11, "writers": {10: old, 11: new}}
    assert (declared["schema"], declared["schema_id"]) == (old, 10)
    assert (unknown["schema"], unknown["schema_id"]) == (wide, None)


@pytest.mark.parametrize(
    ("topic", "versions", "message"),
    [
        (_topic(), [], "'bids-value' has no version at http://registry"),
        (_topic("id INT"), [_schema(ID)], "'id' is declared INT and its field is BIGINT.*'bids-value'"),
        (_topic("x INT"), [_schema(ID)], "'x' is not a field.*the fields are id"),
        (
            _topic(),
            [_schema(ID), _schema(ID, {"name": "b", "type": "int"})],
            r"version 1 \(id 10\) of subject 'bids-value'.*as version 2, the newest: field 'b' is not w",
        ),
        (_topic(schema=_schema(ID, NOTE)), [_schema(NOTE)], "as the topic's schema: field 'id' is not"),
        (_topic(), ["not JSON"], "version 1 .*cannot be used"),
    ],
    ids=["no subject", "type", "column", "newest", "declared", "broken"],
)
def test_source_that_cannot_read_a_version_is_refused(
    topic: KafkaTopic, versions: list[str], message: str
) -> None:
    """One line names topic, subject and version."""
    with pytest.raises(RegistryError, match=message) as caught:
        resolve_source(topic, _Registry(*versions))

    assert "\n" not in str(caught.value)


def test_sink_takes_the_id_of_the_newest_version_with_its_columns() -> None:
    """Without one it takes the id of its columns' schema, which is registered only if a setting allows it."""
    own = _schema(ID)
    registry = _Registry(_schema(ID, NOTE), own)

    assert resolve_sink(_topic(), registry, registers=False).format_options["schema_id"] == 11
    with pytest.raises(RegistryError, match=r"does not have the schema of its columns.*auto\.register"):
        resolve_sink(_topic("note STRING"), registry, registers=False)
    derived = resolve_sink(_topic("note STRING"), registry, registers=True).format_options
    assert derived["schema_id"] == 12
    assert json.loads(registry.schemas[-1])["fields"] == [{"name": "note", "type": ["string", "null"]}]
    assert resolve_sink(_topic("note STRING"), registry, registers=False).format_options == derived
    assert resolve_sink(_topic(schema=own), registry, registers=False).format_options["schema_id"] == 11


@pytest.mark.parametrize("kind", ["TINYINT", "SMALLINT"])
def test_column_smaller_than_int_is_a_field_of_avro_s_int(kind: str) -> None:
    """Of a sink whose schema is registered, and of a source; a wider field is refused."""
    registry, topic = _Registry(), _topic(f"id {kind}")

    sink = resolve_sink(topic, registry, registers=True)

    assert json.loads(registry.schemas[0])["fields"] == [{"name": "id", "type": ["int", "null"]}]
    assert (sink.schema, resolve_source(topic, registry).schema) == (topic.schema, topic.schema)
    with pytest.raises(RegistryError, match=f"'id' is declared {kind} and its field is BIGINT"):
        resolve_source(topic, _Registry(_schema(ID)))


def test_sink_whose_schema_the_rule_refuses_is_refused() -> None:
    """Although schemas may be registered."""
    registry = _Registry(_schema(ID), allows=False)

    with pytest.raises(RegistryError, match=r"the rule of subject 'bids-value'.* \(field 'note' is not writ"):
        resolve_sink(_topic("note STRING"), registry, registers=True)
    assert len(registry.schemas) == 1


def test_run_asks_once_and_again_after_an_unknown_id() -> None:
    """A version that was registered since is read; an id that the subject does not have is refused."""
    registry = _Registry(_schema(ID))
    schemas, topic = _schemas(registry), _topic()

    first = schemas.readable(topic, SETTINGS)
    again = schemas.readable(topic, SETTINGS)
    registry.schemas.append(_schema(ID, NOTE))
    registered = schemas.refresh("bids", 11, SETTINGS)
    unknown = schemas.refresh("bids", 99, SETTINGS)
    last = schemas.readable(topic, SETTINGS).format_options

    assert first.format_options == again.format_options
    assert first.format_options["refused"] == frozenset()
    assert "schema 11, which was registered since the start" in registered
    assert "schema 99, which its subject does not have: they are bad" in unknown
    assert (sorted(last["writers"]), last["refused"]) == ([10, 11], {99})


def test_outage_of_the_registry_makes_no_schema_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    """The id is looked for once more."""
    registry = _Registry(_schema(ID))
    schemas, topic = _schemas(registry), _topic()
    schemas.readable(topic, SETTINGS)
    registry.schemas.append(_schema(ID, NOTE))

    def fail(_subject: str) -> None:
        msg = "the registry does not answer"
        raise UnreachableRegistryError(msg)

    with monkeypatch.context() as away:
        away.setattr(registry, "versions", fail)
        with pytest.raises(UnreachableRegistryError):
            schemas.refresh("bids", 11, SETTINGS)

    assert "was registered since the start" in schemas.refresh("bids", 11, SETTINGS)
    assert schemas.readable(topic, SETTINGS).format_options["refused"] == frozenset()


def test_run_asks_in_vain_only_so_often() -> None:
    """After that a record with an unknown id is bad, and ends no batch."""
    schemas, topic = _schemas(_Registry(_schema(ID))), _topic()
    schemas.readable(topic, SETTINGS)

    for number in range(100, 116):
        assert "refused" in schemas.readable(topic, SETTINGS).format_options
        schemas.refresh("bids", number, SETTINGS)

    assert "refused" not in schemas.readable(topic, SETTINGS).format_options
    assert "refused" not in schemas.bounded(topic, SETTINGS).format_options


def test_topics_with_ids_ask_no_registry() -> None:
    """Other formats ask no registry either."""
    registry = _Registry()
    schemas = _schemas(registry)

    for topic in (_topic(schema_id=7), KafkaTopic("bids", schema="id BIGINT", format="avro")):
        assert schemas.readable(topic, SETTINGS) is schemas.writable(topic, SETTINGS) is topic
        assert schemas.bounded(topic, SETTINGS) is topic
    assert registry.asked == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subject": ""}, "subject='' names no subject"),
        ({"subject": "s", "schema_id": 1}, "subject='s' and schema_id=1 are given"),
        ({"subject": "s", "writers": {1: _schema(ID)}}, "subject='s' and writers are given"),
        ({"schema": _schema(NOTE)}, "'id' is not a field"),
        ({"schema": "no"}, "cannot be used"),
    ],
    ids=["empty", "id", "writers", "column", "schema"],
)
def test_declaration_that_cannot_be_resolved_is_refused(options: dict[str, Any], message: str) -> None:
    """Where the topic is declared, without a registry."""
    with pytest.raises(FormatError, match=message):
        _topic(**options)


def test_format_without_an_id_converts_nothing_itself() -> None:
    """The message says how a client can."""
    with pytest.raises(SerializationError, match="pass schema_id, and writers"):
        SubjectAvroFormat().encode({"id": 1})
    with pytest.raises(SerializationError, match="pass schema_id, and writers"):
        SubjectAvroFormat().decode(b"\0\0\0\0\1\2")


URL, LOGIN = "schema-registry.url", "schema-registry.basic.auth.user.info"
TOKEN, CA = "schema-registry.bearer.auth.token", "schema-registry.ssl.ca.location"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "schema-registry.url is not set.*or pass schema_id"),
        ({URL: "https://"}, "is not one address"),
        ({URL: "https://a,https://b"}, "is not one address"),
        ({URL: "https://a", LOGIN: f"a:{CANARY}", TOKEN: CANARY}, "are both set"),
        ({URL: "https://a", LOGIN: CANARY}, "is not name:password"),
        ({URL: "https://a", TOKEN: f"{CANARY}\n"}, "cannot be printed"),
        ({URL: "http://a", TOKEN: CANARY}, "is not https: the login would be readable"),
        ({URL: "https://a", CA: "nowhere.pem"}, "'nowhere.pem' is not a file"),
    ],
    ids=["missing", "no host", "two", "two logins", "no password", "line", "clear text", "no file"],
)
def test_settings_that_contradict_each_other_are_refused(given: dict[str, str], message: str) -> None:
    """Before the registry is asked, without the secret."""
    with pytest.raises(SettingsError, match=message) as caught:
        SchemaRegistry(Settings.of(given, environment={}))

    assert CANARY not in str(caught.value)


def test_file_without_a_certificate_is_refused(tmp_path: Path) -> None:
    """The file is the authority that has signed the registry's certificate."""
    file = tmp_path / "ca.pem"
    file.write_text("nothing")
    settings = Settings.of({URL: "https://127.0.0.1:1", CA: file}, environment={})

    with pytest.raises(FlowcoreError, match=r"cannot be used.*BEGIN CERTIFICATE"), SchemaRegistry(settings):
        pass
