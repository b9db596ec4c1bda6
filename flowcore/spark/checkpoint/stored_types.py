"""The types of the state of operators by key group: in the plan file, and compared with those of a start.

The layouts of some states have names without types, and a key of another type is in another key group. The
types of results are those of what aggregates keep, but for distinct values and for what ``min_by`` and
``max_by`` compare: of these the schema of the results has the types of the arguments as metadata.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from flowcore.api.node import Operator
from flowcore.api.window_operator import Window
from flowcore.keyed.content import StoredSchemas
from flowcore.planner.model import LiveQuery

__all__ = ["add_argument_types", "decode_schemas", "encode_schemas", "find_type_changes"]

_ARGUMENTS = "flowcore.arguments."
"""The prefix of the metadata with the types of the arguments of an aggregate, before its column."""


def add_argument_types(node: Operator, results: pa.Schema, records: pa.Schema) -> pa.Schema:
    """The schema of an operator's results, with the types of arguments that it keeps and does not return.

    Args:
        records: The columns of its records, arguments included.
    """
    found = {
        _ARGUMENTS + name: _show([records.field(column).type for column in each.columns])
        for name, each in (node.built_in if isinstance(node, Window) else ())
        if each.distinct or len(each.columns) > 1
    }
    return results.with_metadata(found) if found else results


def encode_schemas(schemas: Mapping[str, StoredSchemas]) -> dict[str, list[str]]:
    """The schemas as JSON-able data."""
    return {name: [_encode(each.keys), _encode(each.results)] for name, each in schemas.items()}


def decode_schemas(written: Mapping[str, Sequence[str]]) -> dict[str, StoredSchemas]:
    """What `encode_schemas` wrote.

    Raises:
        ValueError: It is something else; also `TypeError` or `OSError`.
    """
    return {
        name: StoredSchemas(*(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))) for text in each))
        for name, each in written.items()
    }


def find_type_changes(
    query: LiveQuery, before: Mapping[str, StoredSchemas], now: Mapping[str, StoredSchemas]
) -> Iterator[str]:
    """The differences because of which operators cannot read their state: before, and now.

    If a built-in aggregate keeps values of another type, its result has another type, or its arguments have.
    What Python functions return says nothing about their state.
    """
    aggregates = {node.name: node for node in query.operators if isinstance(node, Window) and node.built_in}
    for name in (name for name in before if name in now):
        old, new = before[name], now[name]
        keys = [_show(schema.types) for schema in (old.keys, new.keys)]
        if keys[0] != keys[1]:
            yield f"the key of operator {name!r} was of {keys[0]}, and now {keys[1]}"
        if (node := aggregates.get(name)) is None:
            continue
        plain = node.config.function.then is None
        results = _find_result_changes(old.results, new.results) if plain else {}
        for column, (was, is_now) in results.items():
            if column not in new.keys.names:
                yield f"{column!r} of operator {name!r} was of {was}, and now {is_now}"
        for column, (was, is_now) in _find_argument_changes(old.results, new.results).items():
            if column not in results:
                yield f"the arguments of {column!r} of operator {name!r} were of {was}, and now {is_now}"


def _find_result_changes(old: pa.Schema, new: pa.Schema) -> dict[str, tuple[str, str]]:
    """The columns of both schemas whose types differ, with the types."""
    types = [{field.name: _show([field.type]) for field in schema} for schema in (old, new)]
    return _compare(*types)


def _find_argument_changes(old: pa.Schema, new: pa.Schema) -> dict[str, tuple[str, str]]:
    """The aggregates with other types of arguments, if both schemas say which; an earlier version did not."""
    types = [
        {
            key.decode(errors="replace").removeprefix(_ARGUMENTS): text.decode(errors="replace")
            for key, text in (schema.metadata or {}).items()
            if key.startswith(_ARGUMENTS.encode())
        }
        for schema in (old, new)
    ]
    return _compare(*types)


def _compare(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    return {name: (text, new[name]) for name, text in old.items() if new.get(name, text) != text}


def _encode(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _show(types: Sequence[pa.DataType]) -> str:
    """Types as text, in which it does not count what may be null."""
    return ", ".join(str(each).replace(" not null", "") for each in types) or "no columns"
