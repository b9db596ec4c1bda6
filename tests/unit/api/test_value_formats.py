"""Value formats are checked when a topic is declared, its columns when a flow writes to it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

from flowcore import Flow, KafkaTopic, Parquet
from flowcore.api.value_formats import runs_in_python, value_schema
from flowcore.errors import FormatError, PlanError
from flowcore.planner.rules.fingerprint import _describe, fingerprint_operators
from flowcore.serializers.formats import format_names, registry
from flowcore.serializers.formats.json_text import JsonFormat


def _avro(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}


GOOD: dict[str, dict[str, Any]] = {
    "json-of-any-type": {"schema": "tags ARRAY<STRING>, at TIMESTAMP"},
    "json-sink": {},
    "raw-bytes": {"format": "raw", "schema": "body BINARY"},
    "raw-text": {"format": "raw", "schema": "body STRING NOT NULL"},
    "raw-sink": {"format": "raw"},
    "fixed": {"format": "fixed", "schema": "id INT NOT NULL, at TIMESTAMP NOT NULL"},
    "avro-of-columns": {"format": "avro", "schema": "id TINYINT, name STRING NOT NULL"},
    "avro-of-a-schema": {"format": "avro", "format_options": {"schema": _avro(("id", "long"))}},
    "avro-of-fewer-columns": {
        "format": "avro",
        "schema": "id BIGINT",
        "format_options": {"schema": _avro(("name", "string"), ("id", ["null", "long"]))},
    },
    "avro-of-smaller-columns": {
        "format": "avro",
        "schema": "a TINYINT, b SMALLINT",
        "format_options": {"schema": _avro(("b", "int"), ("a", ["null", "int"]))},
    },
    "confluent": {"format": "avro-confluent", "schema": "id BIGINT", "format_options": {"schema_id": 1}},
    "protobuf": {"format": "protobuf", "format_options": {"message": Timestamp}},
    "protobuf-of-fewer-columns": {
        "format": "protobuf",
        "schema": "name STRING, label STRING",
        "format_options": {"message": FieldDescriptorProto},
    },
}


@pytest.mark.parametrize("case", GOOD)
def test_topic_accepts_a_format_that_holds_its_columns(case: str) -> None:
    """Its name and its options are kept."""
    topic = KafkaTopic("t", **GOOD[case])

    assert topic.format == GOOD[case].get("format", "json")
    assert topic.format_options == GOOD[case].get("format_options", {})
    assert hash(topic) == hash(KafkaTopic("t", **GOOD[case]))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"format": "afro"}, "'afro' is unknown.* did you mean 'avro'"),
    "unknown-with-schema": ({"format": "afro", "schema": "a INT"}, "'afro' is unknown"),
    "json-option": ({"format_options": {"schema": "{}"}}, "'json' has no option 'schema'"),
    "raw-option": ({"format": "raw", "format_options": {"a": 1}}, "'raw' has no option 'a'"),
    "raw-of-two": ({"format": "raw", "schema": "a BINARY, b BINARY"}, "a raw value is one column"),
    "raw-of-a-number": ({"format": "raw", "schema": "a BIGINT"}, "a raw value is one column"),
    "fixed-without-schema": ({"format": "fixed"}, "'fixed' needs columns"),
    "fixed-null": ({"format": "fixed", "schema": "a INT"}, "`?a INT`?' may be null"),
    "fixed-text": ({"format": "fixed", "schema": "a STRING NOT NULL"}, "type that the fixed format does not"),
    "avro-without-schema": ({"format": "avro"}, "'avro' needs columns"),
    "avro-decimal": ({"format": "avro", "schema": "a DECIMAL(9, 2)"}, "type that the avro format does not"),
    "avro-broken": ({"format": "avro", "format_options": {"schema": "{"}}, "cannot be used"),
    "avro-no-record": ({"format": "avro", "format_options": {"schema": '"long"'}}, "is not a record"),
    "avro-union": (
        {"format": "avro", "format_options": {"schema": _avro(("a", ["string", "long"]))}},
        "has no column type in Spark",
    ),
    "avro-other-type": (
        {"format": "avro", "schema": "a STRING", "format_options": {"schema": _avro(("a", "long"))}},
        "'a' is declared STRING and its field is BIGINT",
    ),
    "avro-no-field": (
        {"format": "avro", "schema": "b INT", "format_options": {"schema": _avro(("a", "int"))}},
        "'b' is not a field: .* the fields are a",
    ),
    "avro-option": ({"format": "avro", "schema": "a INT", "format_options": {"id": 1}}, "built from id"),
    "confluent-without-columns": ({"format": "avro-confluent"}, "needs columns"),
    "confluent-id": (
        {"format": "avro-confluent", "schema": "a INT", "format_options": {"schema_id": -1}},
        "not an id of a schema registry",
    ),
    "protobuf-without-message": ({"format": "protobuf", "schema": "a INT"}, "needs the generated message"),
    "protobuf-no-message": (
        {"format": "protobuf", "schema": "a INT", "format_options": {"message": dict}},
        "not a generated Protobuf message class",
    ),
    "protobuf-other-type": (
        {"format": "protobuf", "schema": "nanos BIGINT", "format_options": {"message": Timestamp}},
        "'nanos' is declared BIGINT and its field is INT",
    ),
    "protobuf-smaller-type": (
        {"format": "protobuf", "schema": "nanos SMALLINT", "format_options": {"message": Timestamp}},
        "'nanos' is declared SMALLINT and its field is INT",
    ),
    "protobuf-nested-in-itself": (
        {"format": "protobuf", "format_options": {"message": DescriptorProto}},
        "contains itself",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_topic_refuses_what_its_format_cannot_hold(case: str) -> None:
    """The error names the topic and the fix."""
    settings, message = WRONG[case]

    with pytest.raises(FormatError, match=f"topic 't': .*{message}"):
        KafkaTopic("t", **settings)


def test_topic_has_the_columns_of_its_options_if_it_declares_none() -> None:
    """They are spelled as in a declared schema."""
    point = {"type": "record", "name": "P", "fields": [{"name": "x", "type": ["int", "null"]}]}
    avro = _avro(
        ("id", "long"),
        ("kind", {"type": "enum", "name": "E", "symbols": ["A"]}),
        ("at", ["null", {"type": "long", "logicalType": "timestamp-millis"}]),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        ("path", {"type": "array", "items": point}),
        ("named", {"type": "map", "values": "P"}),
    )

    found = value_schema(KafkaTopic("t", format="avro", format_options={"schema": avro}))

    assert found
    assert found.ddl == (
        "`id` BIGINT NOT NULL, `kind` STRING NOT NULL, `at` TIMESTAMP, `price` DECIMAL(9, 2) NOT NULL, "
        "`path` ARRAY<STRUCT<x: INT>> NOT NULL, `named` MAP<STRING, STRUCT<x: INT>> NOT NULL"
    )


def _write(topic: KafkaTopic, key: str | None = None) -> None:
    flow = Flow("f")
    flow.read("bids", Parquet("bids", "Id INT, price DOUBLE, body BINARY")).write("out", topic, key=key)


SINKS: dict[str, tuple[KafkaTopic, str | None, str | None]] = {
    "json": (KafkaTopic("t"), None, None),
    "json-all": (KafkaTopic("t", "id INT, PRICE DOUBLE, body BINARY"), None, None),
    "json-key-beside": (KafkaTopic("t", "price DOUBLE, body BINARY"), "Id", None),
    "json-lacks": (KafkaTopic("t", "id INT, size INT"), None, "lacks 'size': select exactly id, size before"),
    "json-lost": (KafkaTopic("t", "id INT, price DOUBLE"), None, "has 'body', which would be lost"),
    "all": (KafkaTopic("t", "id INT, PRICE DOUBLE, body BINARY", format="avro"), None, None),
    "key-beside": (KafkaTopic("t", "price DOUBLE, body BINARY", format="avro"), "Id", None),
    "lacks": (KafkaTopic("t", "id INT, size INT", format="avro"), None, "lacks 'size': select exactly id, s"),
    "lost": (KafkaTopic("t", "id INT, price DOUBLE", format="avro"), None, "has 'body', which would be lost"),
    "required": (
        KafkaTopic("t", "id INT, price DOUBLE", key="body", format="avro", format_options={
            "schema": _avro(("id", ["int", "null"]), ("price", ["double", "null"]), ("more", "int"))}),
        "body", "lacks 'more', which its Avro schema requires: no row",
    ),
    "not-required": (
        KafkaTopic("t", "id INT, price DOUBLE", format="avro-confluent", format_options={
            "schema": _avro(
                ("id", ["int", "null"]), ("price", ["double", "null"]), ("more", ["int", "null"]))}),
        "body", None,
    ),
    "raw-of-one": (KafkaTopic("t", "body BINARY", format="raw"), None, "has 'Id', which would be lost"),
    "raw-of-many": (KafkaTopic("t", format="raw"), None, "has the columns Id, price, body, and a raw"),
}  # fmt: skip


@pytest.mark.parametrize("case", SINKS)
def test_sink_accepts_exactly_the_columns_of_its_schema(case: str) -> None:
    """The columns of the key may be missing in it; no other column is lost silently."""
    topic, key, message = SINKS[case]

    if message is None:
        _write(topic, key)
    else:
        with pytest.raises(PlanError, match=f"sink 'out': .*topic 't' as {topic.format} {message}"):
            _write(topic, key)


def test_sink_of_raw_bytes_without_a_schema_accepts_one_column() -> None:
    """The column may have any name."""
    flow = Flow("f")

    flow.read("bids", Parquet("bids", "body BINARY")).write("out", KafkaTopic("t", format="raw"))

    assert flow.sinks[0].columns == ("body",)


def _fingerprint(**settings: Any) -> str:
    flow = Flow("f")
    flow.read("bids", KafkaTopic("bids", "id BIGINT NOT NULL", until="latest", **settings))
    return fingerprint_operators(flow.operators)


def test_format_counts_in_a_fingerprint_unless_it_is_the_default() -> None:
    """Results of older versions, which had only JSON, stay valid."""
    confluent = [_fingerprint(format="avro-confluent", format_options={"schema_id": n}) for n in (1, 2)]
    flow = Flow("f")

    assert _fingerprint() == _fingerprint(format="json", format_options={})
    assert "format" not in _describe(flow.read("bids", KafkaTopic("bids", "id BIGINT")).operator)
    assert len({_fingerprint(), _fingerprint(format="avro"), _fingerprint(format="fixed"), *confluent}) == 5


def test_fingerprint_changes_with_the_definition_of_a_message() -> None:
    """A field with another number is another value, even if the class has the same name."""

    def message(number: int) -> Any:
        file = FileDescriptorProto(name="f.proto", package="p", syntax="proto2")
        file.message_type.add(name="M").field.add(
            name="id", number=number, type="TYPE_INT64", label="LABEL_OPTIONAL"
        )
        pool = DescriptorPool()
        pool.Add(file)
        return GetMessageClass(pool.FindMessageTypeByName("p.M"))

    first, same, other = (
        _fingerprint(format="protobuf", format_options={"message": message(number)}) for number in (1, 1, 2)
    )

    assert first == same != other


def test_formats_without_an_expression_of_spark_run_in_python() -> None:
    """Every format of this package is either native or runs in Python."""
    native = {"json", "avro", "avro-confluent", "raw"}
    settings: Mapping[str, dict[str, Any]] = {
        "fixed": GOOD["fixed"],
        "protobuf": GOOD["protobuf"],
        "avro-confluent": GOOD["confluent"],
        "avro": GOOD["avro-of-columns"],
    }
    topics = {name: KafkaTopic("t", **settings.get(name, {"format": name})) for name in format_names()}

    assert {name for name, topic in topics.items() if not runs_in_python(topic)} == native


def test_registered_format_is_declared_like_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its builder gets columns and options, and refuses unknown options."""
    monkeypatch.setattr(registry, "_FORMATS", dict(registry._FORMATS))
    registry.register("lines", JsonFormat.of)

    topic = KafkaTopic("t", "id BIGINT", format="lines")

    assert runs_in_python(topic)
    with pytest.raises(FormatError, match="topic 't': value format 'lines' needs columns"):
        KafkaTopic("t", format="lines")
    with pytest.raises(FormatError, match="cannot be built from size"):
        KafkaTopic("t", "id BIGINT", format="lines", format_options={"size": 1})


def test_declaring_json_loads_no_other_format() -> None:
    """Declaring a flow takes little time."""
    code = (
        "import sys; from flowcore import *; flow = Flow('f');"
        "flow.read('a', KafkaTopic('a', 'id BIGINT')).write('b', KafkaTopic('b'));"
        "print({'fastavro', 'numpy', 'google.protobuf'} & {*sys.modules})"
    )

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "set()"
