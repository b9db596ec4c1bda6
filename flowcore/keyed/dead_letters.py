"""Dead letters for records, timers and windows whose function raised.

A dead letter is a row of one more output: JSON of the function's input, the error, and where the record was.
A failure that belongs to no single record (of a timer, or a window that fires) becomes a dead letter only if
no source declares that failures stop the query.
"""

import base64
import datetime as dt
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from flowcore.errors import FlowcoreError
from flowcore.escaping import storable
from flowcore.serializers.python_values import first_row

__all__ = ["CONTENT", "DEAD_LETTERS", "OPERATOR", "REASON", "DeadLetters", "Failure", "to_json"]

DEAD_LETTERS = "letters"
"""The name of the output."""
CONTENT, REASON, OPERATOR = "@content", "@reason", "@operator"
"""The columns of the output, before those that say where a record was."""
_LARGEST_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True)
class Failure:
    """One call that failed.

    Attributes:
        place: The number of the record in its batch; None if no single record caused the call.
        content: The function's input; None for the record as functions see it.
    """

    operator: str
    error: FlowcoreError
    place: int | None = None
    content: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """Which failures of an operator's functions become dead letters instead of stopping the query.

    Attributes:
        sources: By number of the source, whether failures of its records become dead letters.
        shown: The columns of a record that functions see.
        places: The columns that say where a record was; the first is the number of its source.
    """

    sources: tuple[bool, ...]
    shown: tuple[str, ...]
    places: tuple[str, ...]

    def schema(self, rows: pa.Schema) -> pa.Schema:
        """The columns of dead letters."""
        texts = (pa.field(name, pa.string()) for name in (CONTENT, REASON, OPERATOR))
        return pa.schema([*texts, *(rows.field(name) for name in self.places)])

    def build_rows(self, failures: Iterable[Failure], rows: pa.RecordBatch) -> pa.RecordBatch:
        """Dead letters of failures; a long list ``values`` of a window is split into several.

        Args:
            rows: The records of the failures; none where no single record caused them.

        Raises:
            FlowcoreError: The error of the first failure that must stop the query.
        """
        contents: list[str] = []
        causes: list[Failure] = []
        numbers = rows.column(self.places[0])
        for each in failures:
            number = None if each.place is None else numbers[each.place].as_py()
            # Without a source, a record may be of any.
            if not all(self.sources if number is None else (self.sources[number],)):
                raise each.error
            parts = [*self._contents(each, rows)]
            contents += parts
            causes += [each] * len(parts)
        found = rows.take(pa.array([each.place for each in causes], pa.int64()))
        reasons = [storable(str(each.error)) for each in causes]
        texts = ([*map(storable, contents)], reasons, [each.operator for each in causes])
        columns = [*(pa.array(each, pa.string()) for each in texts), *map(found.column, self.places)]
        return pa.record_batch(columns, schema=self.schema(rows.schema))

    def _contents(self, failure: Failure, rows: pa.RecordBatch) -> Iterator[str]:
        content, place = failure.content, failure.place
        if content is None and place is not None:
            content = first_row(rows.slice(place, 1).select(list(dict.fromkeys(self.shown))))
        if content is None or place is not None or "values" not in content:
            yield to_json(content)
            return
        head = to_json({name: each for name, each in content.items() if name != "values"})
        for part in _split([to_json(each) for each in content["values"]]):
            yield f'{head[:-1]}, "values": [{", ".join(part)}]}}'


def _split(texts: Iterable[str]) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for text in texts:
        if part and size + len(text) > _LARGEST_CHARACTERS:
            yield part
            part, size = [], 0
        part.append(text)
        size += len(text)
    yield part


def to_json(value: Any) -> str:
    """JSON that shows a function's input; what has no JSON of its own becomes a text."""
    try:
        return json.dumps(_displayable(value), ensure_ascii=False)
    except (RecursionError, ValueError):  # nested too deep, or a whole number of thousands of digits
        return json.dumps(f"a {type(value).__name__} that cannot be shown")


def _displayable(value: Any) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {str(key): _displayable(each) for key, each in value.items()}
        case list() | tuple():
            return [_displayable(each) for each in value]
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case dt.datetime() | dt.date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case _:
            return repr(value)
