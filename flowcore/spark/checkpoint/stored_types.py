"""The types of the state of operators by key group: in the plan file, and compared with those of a start.

The layouts of some states have names without types, and a key of another type is in another key group.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from flowcore.api.window_operator import Window
from flowcore.keyed.content import StoredSchemas
from flowcore.planner.model import LiveQuery

__all__ = ["decode_schemas", "encode_schemas", "find_type_changes"]


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

    The result of a built-in aggregate has another type if what is kept for it has. What Python functions
    return says nothing about their state.
    """
    built_in = {
        node.name
        for node in query.operators
        if isinstance(node, Window) and node.built_in and node.config.function.then is None
    }
    for name in (name for name in before if name in now):
        old, new = before[name], now[name]
        keys = [_show(schema.types) for schema in (old.keys, new.keys)]
        if keys[0] != keys[1]:
            yield f"the key of operator {name!r} was of {keys[0]}, and now {keys[1]}"
        both = [each for each in old.results.names if name in built_in and each in new.results.names]
        for column in both:
            kinds = [_show([schema.field(column).type]) for schema in (old.results, new.results)]
            if kinds[0] != kinds[1] and column not in new.keys.names:
                yield f"{column!r} of operator {name!r} was of {kinds[0]}, and now {kinds[1]}"


def _encode(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _show(types: Sequence[pa.DataType]) -> str:
    """Types as text, in which it does not count what may be null."""
    return ", ".join(str(each).replace(" not null", "") for each in types) or "no columns"
