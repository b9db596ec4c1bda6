"""The schemas of a run's topics whose ids the schema registry gives.

The registry is asked when a run starts. For a source, all versions of the subject are read as one schema: the
newest, or the one that is declared. For a sink, the id is that of the newest version if it has the declared
columns, else that of the declared schema, which is registered only if a setting allows it.

A topic with ids is a `KafkaTopic` with the options ``schema``, ``schema_id`` and ``writers``, as if a user
had written them. The plan and its fingerprint have the topic without ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from flowcore.api.connectors import KafkaTopic
from flowcore.api.value_formats import asks_registry, value_columns, value_schema
from flowcore.errors import FormatError, RegistryError
from flowcore.kafka.schema_registry import SchemaRegistry, SchemaVersion

if TYPE_CHECKING:
    from flowcore.settings import Settings

__all__ = ["Registry", "TopicSchemas", "resolve_sink", "resolve_source"]

_MOST_REFUSED = 16
"""The most ids of one topic for which the registry is asked in vain. After that each unknown id is bad:
otherwise a writer of the topic could stop its reader for ever."""


class Registry(Protocol):
    """The requests to a schema registry; see `SchemaRegistry`."""

    @property
    def url(self) -> str: ...
    def versions(self, subject: str) -> tuple[SchemaVersion, ...]: ...
    def find_id(self, subject: str, schema: str) -> int | None: ...
    def is_compatible(self, subject: str, schema: str) -> bool: ...
    def register(self, subject: str, schema: str) -> int: ...


class TopicSchemas:
    """The topics of one run, with the ids that the registry gave.

    Args:
        connect: Connects to the registry of a run's settings.
    """

    def __init__(
        self, connect: Callable[[Settings], AbstractContextManager[Registry]] = SchemaRegistry
    ) -> None:
        self._connect = connect
        self._sources: dict[KafkaTopic, KafkaTopic] = {}
        self._sinks: dict[KafkaTopic, KafkaTopic] = {}
        self._refused: dict[str, set[int]] = {}

    def require(self, sources: Iterable[KafkaTopic], sinks: Iterable[KafkaTopic], settings: Settings) -> None:
        """Ask the registry for all topics of a run: sinks first, since a flow may read what it writes.

        Raises:
            RegistryError: The registry refuses, or its schemas do not fit a topic.
            UnreachableRegistryError: The registry does not answer.
            SettingsError: Its settings are missing, or contradict each other.
        """
        for topic in sinks:
            self.writable(topic, settings)
        for topic in sources:
            self.readable(topic, settings)

    def readable(self, topic: KafkaTopic, settings: Settings) -> KafkaTopic:
        """A source of a live query with the schemas of ids; an id that is not among them ends its batch.

        Raises as `require`.
        """
        if not asks_registry(topic):
            return topic
        if topic not in self._sources:
            with self._connect(settings) as registry:
                found = resolve_source(topic, registry)
            self._sources[topic] = found
        found, refused = self._sources[topic], self._refused.get(topic.name, set())
        if len(refused) >= _MOST_REFUSED:
            return found
        return replace(found, format_options={**found.format_options, "refused": frozenset(refused)})

    def bounded(self, topic: KafkaTopic, settings: Settings) -> KafkaTopic:
        """A bounded source with the schemas of ids as they are now: any other is bad. Raises as `require`."""
        if not asks_registry(topic):
            return topic
        with self._connect(settings) as registry:
            return resolve_source(topic, registry)

    def writable(self, topic: KafkaTopic, settings: Settings) -> KafkaTopic:
        """A sink with the id of its schema. Raises as `require`."""
        if not asks_registry(topic):
            return topic
        if topic not in self._sinks:
            with self._connect(settings) as registry:
                self._sinks[topic] = resolve_sink(topic, registry, registers=settings.registers_schemas)
        return self._sinks[topic]

    def refresh(self, name: str, number: int, settings: Settings) -> str:
        """Ask the registry again, after a topic had a value of an id that was not known.

        Returns:
            What was found, for the log.

        Raises as `require`.
        """
        known = False
        for topic in [each for each in self._sources if each.name == name]:
            # In an outage what was known stays, and this is asked again.
            found = self._sources[topic] = self.bounded(topic, settings)
            known = known or number in found.format_options["writers"]
        if known:
            return f"topic {name!r} has values of schema {number}, which was registered since the start"
        self._refused.setdefault(name, set()).add(number)
        return f"topic {name!r} has values of schema {number}, which its subject does not have: they are bad"


def resolve_source(topic: KafkaTopic, registry: Registry) -> KafkaTopic:
    """A source with the schemas of all versions of its subject.

    Raises:
        RegistryError: The subject has no version, one cannot be read as the topic's schema, or the newest
            does not have the declared columns.
    """
    subject = _subject(topic)
    versions = registry.versions(subject)
    if not versions:
        msg = (
            f"topic {topic.name!r}: subject {subject!r} has no version at {registry.url}: its values could "
            "not be read; start its producer first, or name the subject by format_options={'subject': ...}"
        )
        raise RegistryError(msg)
    declared = topic.format_options.get("schema")
    newest = versions[-1]
    reader = newest.schema if declared is None else _text(declared)
    number = newest.id if declared is None else registry.find_id(subject, reader)
    for version in versions:
        problem = _find_problem(version.schema, reader)
        if problem is not None:
            against = f"version {newest.number}, the newest" if declared is None else "the topic's schema"
            msg = (
                f"topic {topic.name!r}: version {version.number} (id {version.id}) of subject {subject!r} at "
                f"{registry.url} cannot be read as {against}: {problem}; pass a schema that can read all "
                "versions by format_options={'schema': ...}, or delete that version if no value has it"
            )
            raise RegistryError(msg)
    writers = {version.id: version.schema for version in versions}
    return _with_ids(topic, registry, {"schema": reader, "schema_id": number, "writers": writers})


def resolve_sink(topic: KafkaTopic, registry: Registry, *, registers: bool) -> KafkaTopic:
    """A sink with the id of its schema.

    Args:
        registers: A schema that the subject does not have is registered.

    Raises:
        RegistryError: The subject does not have the schema, and it is not to be registered, or the subject's
            rule refuses it.
    """
    from flowcore.serializers.formats.avro_schemas import avro_schema  # noqa: PLC0415 - heavy, and rare

    subject = _subject(topic)
    declared = topic.format_options.get("schema")
    newest = None if declared is not None else next(reversed(registry.versions(subject)), None)
    if newest is not None and _has_columns(topic, newest.schema):
        return _with_ids(topic, registry, {"schema": newest.schema, "schema_id": newest.id})
    schema = value_schema(topic)
    text = _text(avro_schema(schema.columns if schema else ()) if declared is None else declared)
    number = registry.find_id(subject, text)
    if number is None:
        if not registry.is_compatible(subject, text):
            why = None if newest is None else _find_problem(newest.schema, text)
            msg = (
                f"topic {topic.name!r}: the rule of subject {subject!r} at {registry.url} refuses the schema "
                f"of its columns{f' ({why})' if why else ''}: readers of the topic would fail; change the "
                f"columns, or write to another topic; the schema is {text}"
            )
            raise RegistryError(msg)
        if not registers:
            msg = (
                f"topic {topic.name!r}: subject {subject!r} at {registry.url} does not have the schema of "
                "its columns, so its values would have no id; register it, or set "
                f"schema-registry.auto.register.schemas to true; the schema is {text}"
            )
            raise RegistryError(msg)
        _with_ids(topic, registry, {"schema": text, "schema_id": 0})  # refuses before it is there for ever
        number = registry.register(subject, text)
    return _with_ids(topic, registry, {"schema": text, "schema_id": number})


def _subject(topic: KafkaTopic) -> str:
    return str(topic.format_options.get("subject") or f"{topic.name}-value")


def _text(schema: Any) -> str:
    return schema if isinstance(schema, str) else json.dumps(schema)


def _find_problem(writer: str, reader: str) -> str | None:
    from flowcore.serializers.formats.avro_evolution import find_misreading  # noqa: PLC0415 - heavy, and rare

    try:
        return find_misreading(_parsed(writer), _parsed(reader))
    except FormatError as error:
        return str(error)


@lru_cache(maxsize=2)  # all versions have one reader
def _parsed(schema: str) -> Any:
    from flowcore.serializers.formats.avro import parse_avro  # noqa: PLC0415 - heavy, and rare

    return parse_avro(schema)


def _has_columns(topic: KafkaTopic, schema: str) -> bool:
    """Whether a schema has the columns of a topic and no others."""
    try:
        fields = value_columns(replace(topic, format_options={"schema": schema, "schema_id": 0}))
    except FormatError:
        return False
    columns = value_schema(topic)
    return columns is not None and {*columns.names} == {*fields}


def _with_ids(topic: KafkaTopic, registry: Registry, options: dict[str, Any]) -> KafkaTopic:
    try:
        return replace(topic, format_options=options)
    except FormatError as error:
        msg = f"{error}; the schema is that of subject {_subject(topic)!r} at {registry.url}"
        raise RegistryError(msg) from error
