"""SQL texts of keys."""

from pyspark.sql import types as T

from flowcore.errors import PlanError
from flowcore.spark.frame.sql import literal, quote

__all__ = ["canonical_key", "key_group_text"]

_KEYS = (
    T.NumericType, T.StringType, T.BooleanType, T.BinaryType, T.DateType, T.TimestampType,
    T.TimestampNTZType, T.NullType,
)  # fmt: skip


def canonical_key(schema: T.StructType, column: str, name: str) -> str:
    """SQL text that is identical for keys that Spark groups together: 0.0 for -0.0, and a single NaN.

    A text has U+FFFD for bytes that are not UTF-8, as in Python.

    So two keys are equal, or not, in Spark, in Python, and when read back from state.

    The key is a ``column`` of the schema, and has the user's ``name`` in errors.

    Raises:
        PlanError: Values of its type cannot be compared everywhere.
    """
    kind = next(field.dataType for field in schema.fields if field.name.lower() == column.lower())
    if not _is_key(kind):
        msg = (
            f"by={name!r} is {kind.simpleString().upper()}: arrays, maps and structs with them have no "
            "equality for finding state, so a key would not be found again; use its parts as keys, or text: "
            f"'to_json({name}) as key'"
        )
        raise PlanError(msg)
    return _canonical(kind, quote(column))


def key_group_text(keys: tuple[str, ...] | list[str], key_groups: int) -> str:
    """SQL text of the key group of a row, from the texts of its canonical keys."""
    return f"CAST(pmod(hash({', '.join(keys)}), {key_groups}) AS INT)" if keys else "0"


def _is_key(kind: T.DataType) -> bool:
    if isinstance(kind, T.StructType):
        return bool(kind.fields) and all(_is_key(field.dataType) for field in kind.fields)
    return isinstance(kind, _KEYS)


def _canonical(kind: T.DataType, text: str) -> str:
    match kind:
        case T.DoubleType() | T.FloatType():
            name = kind.simpleString()
            nan, zero = f"CAST('NaN' AS {name})", f"CAST(0 AS {name})"
            return f"CASE WHEN isnan({text}) THEN {nan} WHEN {text} = 0 THEN {zero} ELSE {text} END"
        case T.StructType(fields=fields) if _has_forms(kind):
            parts = (
                f"{literal(field.name)}, {_canonical(field.dataType, f'{text}.{quote(field.name)}')}"
                for field in fields
            )
            return f"CASE WHEN {text} IS NOT NULL THEN named_struct({', '.join(parts)}) END"
        case T.StringType():
            return f"make_valid_utf8({text})"  # as Python has it
        case _:
            return text


def _has_forms(kind: T.DataType) -> bool:
    """Whether a value of a type may have another form."""
    if isinstance(kind, T.StructType):
        return any(_has_forms(field.dataType) for field in kind.fields)
    return isinstance(kind, (T.DoubleType, T.FloatType, T.StringType))
