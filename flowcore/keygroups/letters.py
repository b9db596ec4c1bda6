"""Letters: how do records, timers and windows leave for which a function has failed?

As rows of one more output: JSON of what the function was given, and why it failed. A record's letter says
where the record was. What is made of no single record (a timer, a window that emits) becomes a letter only if
no source says that failures stop the query.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from flowcore.errors import FlowcoreError

__all__ = ["CONTENT", "LETTERS", "REASON", "Letters"]

LETTERS = "letters"
"""The output."""
CONTENT, REASON = "@content", "@reason"
"""Its columns, beside those that say where a record was."""
_LARGEST_BYTES = 1 << 20

Failure = tuple[Mapping[str, Any], FlowcoreError]
"""What a function was given, and what is said of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """Which failures of an operator's functions leave, instead of stopping the query.

    Attributes:
        sources: By number of the source: its records' failures leave.
        shown: The columns of a record that functions see.
        places: Those that say where it was; the first is the number of its source.
    """

    sources: tuple[bool, ...]
    shown: tuple[str, ...]
    places: tuple[str, ...]

    def schema(self, rows: pa.Schema) -> pa.Schema:
        """The columns of letters.

        Args:
            rows: Those of records.
        """
        texts = (pa.field(CONTENT, pa.string()), pa.field(REASON, pa.string()))
        return pa.schema([*texts, *(rows.field(name) for name in self.places)])

    def of_records(self, failed: Sequence[tuple[int, FlowcoreError]], rows: pa.RecordBatch) -> pa.RecordBatch:
        """Letters of some records.

        Args:
            failed: By their place in the batch, with what is said of each.
            rows: The batch.

        Raises:
            FlowcoreError: What is said of the first whose source says that it stops the query.
        """
        found = rows.take(pa.array([place for place, _ in failed], pa.int64()))
        for number, (_, error) in zip(found.column(self.places[0]), failed, strict=True):
            if not self.sources[int(number.as_py())]:
                raise error
        contents = found.select(list(dict.fromkeys(self.shown))).to_pylist()
        texts = [[_json(each) for each in contents], [str(error) for _, error in failed]]
        beside = [found.column(name) for name in self.places]
        schema = self.schema(rows.schema)
        return pa.record_batch([*(pa.array(each, pa.string()) for each in texts), *beside], schema=schema)

    def of_others(self, failed: Sequence[Failure], rows: pa.Schema) -> pa.RecordBatch:
        """Letters of what was made of no single record; a long list ``values`` is cut over several letters.

        Raises:
            FlowcoreError: What is said of the first, if a source says that failures stop the query.
        """
        if not all(self.sources):
            raise failed[0][1]
        made = [(text, str(error)) for content, error in failed for text in _parts(content)]
        schema = self.schema(rows)
        texts = [pa.array([each[column] for each in made], pa.string()) for column in (0, 1)]
        beside = [pa.nulls(len(made), rows.field(name).type) for name in self.places]
        return pa.record_batch([*texts, *beside], schema=schema)


def _parts(content: Mapping[str, Any]) -> Iterator[str]:
    values = [_json(each) for each in content.get("values", ())]
    head = _json({name: each for name, each in content.items() if name != "values"})
    if "values" not in content:
        yield head
        return
    for part in _cut(values):
        yield f'{head[:-1]}, "values": [{", ".join(part)}]}}'


def _cut(texts: Iterable[str]) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for text in texts:
        if part and size + len(text) > _LARGEST_BYTES:
            yield part
            part, size = [], 0
        part.append(text)
        size += len(text)
    yield part


def _json(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {str(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case dt.datetime() | dt.date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case _:
            return repr(value)
