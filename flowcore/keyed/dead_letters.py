"""DeadLetters: how do records, timers and windows leave for which a function has failed?

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

__all__ = ["CONTENT", "DEAD_LETTERS", "OPERATOR", "REASON", "DeadLetters", "Failure"]

DEAD_LETTERS = "letters"
"""The output."""
CONTENT, REASON, OPERATOR = "@content", "@reason", "@operator"
"""Its columns, beside those that say where a record was."""
_LARGEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Failure:
    """One call that failed.

    Attributes:
        operator: Whose function it was.
        error: What is said of it.
        place: Of which record of a batch something was made; None if of no single one.
        content: What the function was given; None for the record as functions see it.
    """

    operator: str
    error: FlowcoreError
    place: int | None = None
    content: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
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
        texts = (pa.field(name, pa.string()) for name in (CONTENT, REASON, OPERATOR))
        return pa.schema([*texts, *(rows.field(name) for name in self.places)])

    def build_rows(self, failures: Iterable[Failure], rows: pa.RecordBatch) -> pa.RecordBatch:
        """DeadLetters of some failures; a long list ``values`` of a window is cut over several.

        Args:
            failures: The failures.
            rows: The records that they were about; none where they were about no single one.

        Raises:
            FlowcoreError: What is said of the first that is to stop the query, as its source says.
        """
        made: list[tuple[str, Failure]] = []
        numbers = rows.column(self.places[0])
        for each in failures:
            mine = self.sources if each.place is None else (self.sources[int(numbers[each.place].as_py())],)
            if not all(mine):
                raise each.error
            made += [(text, each) for text in self._texts(each, rows)]
        found = rows.take(pa.array([each.place for _, each in made], pa.int64()))
        texts = [
            [text for text, _ in made],
            *([str(e.error) for _, e in made], [e.operator for _, e in made]),
        ]
        columns = [*(pa.array(each, pa.string()) for each in texts), *map(found.column, self.places)]
        return pa.record_batch(columns, schema=self.schema(rows.schema))

    def _texts(self, failure: Failure, rows: pa.RecordBatch) -> Iterator[str]:
        content, place = failure.content, failure.place
        if content is None and place is not None:
            (content,) = rows.slice(place, 1).select(list(dict.fromkeys(self.shown))).to_pylist()
        if content is None or place is not None or "values" not in content:
            yield _json(content)
            return
        head = _json({name: each for name, each in content.items() if name != "values"})
        for part in _cut([_json(each) for each in content["values"]]):
            yield f'{head[:-1]}, "values": [{", ".join(part)}]}}'


def _cut(texts: Sequence[str]) -> Iterator[list[str]]:
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
