"""Checks of types, as far as they are known when a flow is declared.

Each raises `PlanError` with the operator's name.
"""

import re
from collections.abc import Sequence

from flowcore.api.checks import refuse
from flowcore.api.connectors import Csv, Files, KafkaTopic
from flowcore.api.expression_types import (
    TypedArgument,
    find_arguments,
    find_struct_fields,
    find_types,
    read_fields,
)
from flowcore.api.expressions import Expression
from flowcore.api.operators import Operator, StatefulOperator
from flowcore.api.schema import Schema, fits
from flowcore.api.value_formats import value_schema

__all__ = [
    "require_aggregable",
    "require_comparable",
    "require_crossing",
    "require_fields",
    "require_file_types",
    "require_gap",
    "require_keys",
    "require_ordered",
    "require_read_types",
    "require_same_types",
    "require_united",
    "require_written_types",
]

_PLAIN = {
    "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "BINARY", "DATE",
    "TIMESTAMP", "TIMESTAMP_NTZ",
}  # fmt: skip
"""Types with one spelling each."""

_NESTED = {"ARRAY", "MAP", "STRUCT"}
_FAMILIES = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL"), "number"),
    **dict.fromkeys(("DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"), "time"),
    **dict.fromkeys(("STRING", "VARCHAR", "CHAR"), "text"),
    **{kind: kind for kind in ("BOOLEAN", "BINARY", *_NESTED)},
}
"""By type, without its parameters, what Spark converts it to and from without a loss."""


def require_keys(node: Operator) -> None:
    """Check that an operator can find state by its key, as far as its type is known.

    Raises:
        PlanError: A column of the key is a list or a map, or contains one.
    """
    if not isinstance(node, StatefulOperator) or node.compiled().value != "key-group":
        return
    known = node.inputs[0].types()
    for column in node.by:
        kind = known.get(column.lower(), "")
        if re.search(r"\b(ARRAY|MAP)<|^(ARRAY|MAP)$", kind.upper()):
            refuse(
                f"operator {node.name!r}: by={column!r} is {kind}: arrays, maps and structs with them have "
                "no equality for finding state, so a key would not be found again; use its parts as keys, "
                f"or text: 'to_json({column}) as key'"
            )


def require_comparable(left: Operator, right: Operator, name: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Check that values of columns joined on can be equal, as far as their types are known.

    Raises:
        PlanError: Spark compares no values of the two types, for instance of a number and a date, or a list
            and a text; or of none with one of its own type, as for maps.
    """
    mine, theirs = left.types(), right.types()
    for one, other in pairs:
        types = mine.get(one.lower(), ""), theirs.get(other.lower(), "")
        families = {_family(types[0]), _family(types[1])}
        if "" in families or (len(families) == 1 and "MAP" not in families):
            continue
        if _NESTED.isdisjoint(families) and ("text" in families or families == {"BOOLEAN", "number"}):
            continue  # Spark casts one to the type of the other
        refuse(
            f"operator {name!r}: {one!r} of {left.name!r} is {types[0]} and {other!r} of {right.name!r} is "
            f"{types[1]}: no value of one equals one of the other; join on columns of one type that is no "
            "map: cast one, or take an item of an array or to_json(...) of it"
        )


def require_united(inputs: Sequence[Operator], name: str) -> None:
    """Check that columns of inputs with the same columns can be united, as far as their types are known.

    Raises:
        PlanError: A column has types of different families. Numbers are united, and so are dates and times.
    """
    first, known = inputs[0], inputs[0].types()
    for other in inputs[1:]:
        for column, kind in other.types().items():
            mine = known.get(column, "")
            if _family(mine) and _family(kind) and _family(mine) != _family(kind):
                refuse(
                    f"operator {name!r}: {column!r} is {mine} in {first.name!r} and {kind} in "
                    f"{other.name!r}: Spark would make texts of both, or fail when it has started; cast one, "
                    f"for instance {other.name}.with_columns({column}='CAST({column} AS {mine})')"
                )


def require_crossing(node: Operator, name: str, topic: KafkaTopic, schema: Schema) -> None:
    """Check that the schema of a cut takes each value of a stream, as far as the types are known.

    Raises:
        PlanError: A type of the schema does not take each value.
    """
    known = node.types()
    for column in schema.columns:
        kind = known.get(column.name.lower(), "")
        as_text = topic.format == "json" and _family(kind) == "time" and column.type == "STRING"
        as_float = _family(kind) == "number" and column.type in {"FLOAT", "DOUBLE"}
        if not as_text and not as_float and _misfits(kind, column.type):
            refuse(
                f"cut {name!r}: {column.name!r} of {node.name!r} is {kind}, and its schema says "
                f"{column.type}: records with other values would be dead letters; declare "
                f"'{column.name} {kind}', or cast it before the cut"
            )


def require_written_types(node: Operator, name: str, topic: KafkaTopic) -> None:
    """Check that a format holds each value of a stream, as far as the types are known.

    JSON is written in the types of the stream.

    Raises:
        PlanError: A type of the topic's schema does not take each value.
    """
    schema = None if topic.format == "json" else value_schema(topic)
    known = node.types()
    for column in schema.columns if schema is not None else ():
        kind = known.get(column.name.lower(), "")
        if _misfits(kind, column.type):
            refuse(
                f"sink {name!r}: {column.name!r} of {node.name!r} is {kind}, and topic {topic.name!r} has it "
                f"as {column.type}: values could be cut or changed; select "
                f"'CAST({column.name} AS {column.type}) AS {column.name}' before it, or correct the schema"
            )


def require_same_types(left: Operator, right: Operator, name: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Check that columns joined on by key group have one type, as far as their types are known.

    Raises:
        PlanError: Two columns have different types of single values, or decimals of different digits.
    """
    mine, theirs = left.types(), right.types()
    for one, other in pairs:
        types = mine.get(one.lower(), ""), theirs.get(other.lower(), "")
        single = all(_family(kind) not in {"", "text", *_NESTED} or kind == "STRING" for kind in types)
        if single and _spell(types[0]) != _spell(types[1]):
            refuse(
                f"operator {name!r}: {one!r} of {left.name!r} is {types[0]}, and {other!r} of {right.name!r} "
                f"is {types[1]}: equal values would be in different key groups; cast one of them, for "
                f"instance with_columns({other}='CAST({other} AS {types[0]})')"
            )


def require_file_types(node: Operator, name: str, sink: Files) -> None:
    """Check that files and their folders can hold the values of a stream, as far as its types are known.

    Raises:
        PlanError: A list, a map or a struct is a column of CSV, or names folders.
    """
    known = node.types()
    for column in node.columns:
        kind = known.get(column.lower(), "")
        what = "Spark names no folders by such values" if column in sink.partition_by else ""
        if isinstance(sink, Csv):
            what = "a CSV file has single values only"
        if what and _family(kind) in _NESTED:
            refuse(
                f"sink {name!r}: {column!r} of {node.name!r} is {kind}, and {what}: Spark would refuse it "
                f"when it has started; write for instance with_columns({column}='to_json({column})'), or "
                "write Parquet or Json"
            )


def require_read_types(name: str, source: Files, schema: Schema) -> None:
    """Check that files can have values of the types of a schema.

    Raises:
        PlanError: A column of CSV is a list, a map or a struct.
    """
    for column in schema.columns if isinstance(source, Csv) else ():
        if _family(column.type) in _NESTED:
            refuse(
                f"source {name!r}: {column.name!r} is {column.type}, and a CSV file has single values only: "
                f"Spark would refuse it when it has started; declare '{column.name} STRING', and read it for "
                "instance with from_json or split"
            )


def require_fields(node: Operator, name: str, text: str, expression: Expression) -> None:
    """Check that the fields that an expression reads exist, as far as the types of columns are known.

    Raises:
        PlanError: A struct has no such field, or single values have none.
    """
    if not any(expression.fields):
        return
    for column, kind, field in read_fields(expression.text, node.types()):
        family, known = _family(kind), find_struct_fields(kind)
        if family in {"", "ARRAY", "MAP"} or field.lower() in map(str.lower, known):
            continue  # a field of an array is the array of those of its elements; one of a map is a key
        what = f"which has the fields {', '.join(known)}" if known else "which has no fields"
        refuse(
            f"operator {name!r}: {text!r} reads the field {field!r} of {column!r}, which is {kind}, {what}: "
            "Spark would refuse it when it has started; correct the name, or the schema"
        )


def require_aggregable(node: Operator, name: str, where: str, text: str, *, casts: bool = True) -> None:
    """Check the arguments of built-in aggregates, as far as their types are known.

    Args:
        casts: Spark computes the aggregates, and casts text.

    Raises:
        PlanError: A sum or a mean is not of numbers, or a function of conditions has something else.
    """
    for argument in find_arguments(text, node.types()):
        family, wanted = _family(argument.kind), "BOOLEAN" if argument.condition else "number"
        if family in {"", wanted} or (family == "text" and casts):
            continue
        what = "condition" if argument.condition else "number"
        refuse(
            f"operator {name!r}: {where}: {argument.text!r} is {argument.kind} and not a {what}: it would be "
            f"refused when Spark has started; pass for instance {_suggest_argument(argument)!r}"
        )


def _suggest_argument(argument: TypedArgument) -> str:
    """What an aggregate function takes of a value of another type."""
    family, text = _family(argument.kind), argument.text
    if argument.condition:
        return f"{text} > 0" if family == "number" else f"{text} IS NOT NULL"
    if family in _NESTED:
        return f"size({text})"
    return f"unix_date({text})" if argument.kind == "DATE" else f"CAST({text} AS DOUBLE)"


def require_ordered(node: Operator, name: str, columns: Sequence[str]) -> None:
    """Check that the columns of an order have values of which one is larger, as far as types are known.

    Raises:
        PlanError: A column is a map, or of an unbounded stream a list or a struct, which Spark itself orders.
    """
    known, refused = node.types(), {"MAP"} if node.bounded else _NESTED
    for column in columns:
        kind = known.get(column.lower(), "")
        if _family(kind) in refused:
            refuse(
                f"operator {name!r}: order by {column!r}, which is {kind}: which value is larger is not "
                "defined for arrays, maps and structs; order by one of its fields or elements, or by its "
                "size, computed by with_columns before it"
            )


def require_gap(node: Operator, name: str, gap: Expression) -> None:
    """Check that the gap of a session is a number of milliseconds, as far as its type is known.

    Raises:
        PlanError: It is of another type.
    """
    kind = find_types([("", gap)], node.types()).get("", "")
    if _family(kind) not in {"", "number"}:
        refuse(
            f"operator {name!r}: gap={gap.text!r} is {kind} and not a number of milliseconds: it would not "
            f"be known when a session ends; pass for instance Session('CAST({gap.text} AS BIGINT)')"
        )


def _spell(kind: str) -> str:
    """A type of single values as Spark spells it.

    >>> _spell("DECIMAL"), _spell("DECIMAL(10, 2)"), _spell("TIMESTAMP_LTZ")
    ('DECIMAL(10,0)', 'DECIMAL(10,2)', 'TIMESTAMP')
    """
    text = kind.upper().replace(" ", "").replace("TIMESTAMP_LTZ", "TIMESTAMP")
    if text == "DECIMAL":
        return "DECIMAL(10,0)"
    return re.sub(r"^DECIMAL\((\d+)\)$", r"DECIMAL(\1,0)", text)


def _misfits(kind: str, wanted: str) -> bool:
    """Whether a value of one type may not be one of the other, as far as both are known to be compared."""
    if _PLAIN.issuperset((kind, wanted)):
        return not fits(kind, wanted)
    return "" not in (_family(kind), _family(wanted)) and _family(kind) != _family(wanted)


def _family(kind: str) -> str:
    """A name for the types that Spark compares and unites with each other; nothing for an unknown type."""
    outer = re.split(r"[<(]", kind.upper())[0].strip()
    return _FAMILIES.get(outer, "")
