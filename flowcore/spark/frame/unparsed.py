"""The messages of a query's sources before Spark parses them.

Where a frame has nothing but what was read of a message, Python may read the messages itself while it packs
them for an exchange (`flowcore.keyed.message_reader`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame

from flowcore.keyed.message_reader import MessageColumns, MessageSource
from flowcore.spark.frame.sql import quote

__all__ = ["MESSAGE_COLUMNS", "UnparsedMessages", "UnparsedSource"]

MESSAGE_COLUMNS = MessageColumns(
    channel="_channel", offset="_offset", value="_value", written_ms="_written_ms", latest_ms="_latest_ms"
)
"""The columns of `UnparsedMessages.frame`."""
_CONSTANTS = {"false": False, "true": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnparsedSource:
    """A source whose messages Python can read.

    Attributes:
        branch: The number of the branch of its records.
        fields: The field that a SQL text of a record's column is, by text.
        constants: The value of a text that is the same in all of its records, by text.
        advances: The event time of its records counts for watermarks.
        find_reasons: Adds to a frame why its messages are bad, to those that have no reason yet.
    """

    reader: MessageSource
    branch: int
    fields: Mapping[str, str]
    constants: Mapping[str, Any]
    advances: bool
    find_reasons: Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class UnparsedMessages:
    """The messages of some sources.

    Attributes:
        frame: The messages, in `MESSAGE_COLUMNS`.
        parsed: The frame with what Spark reads of them. Any other frame has more or fewer rows or columns.
        sources: The sources, by number.
    """

    frame: DataFrame
    parsed: DataFrame
    sources: Mapping[int, UnparsedSource]

    @classmethod
    def unite(cls, members: Sequence[UnparsedMessages], parsed: DataFrame) -> UnparsedMessages:
        """The messages of several frames that were united in one."""
        sources = {number: source for each in members for number, source in each.sources.items()}
        return cls(reduce(DataFrame.unionByName, (each.frame for each in members)), parsed, sources)

    def choose(self, columns: Mapping[str, Mapping[int, str]], parsed: DataFrame) -> UnparsedMessages:
        """With columns that have another text in each branch; ``parsed`` has them, too."""
        sources = {}
        for number, source in self.sources.items():
            texts = {quote(name): cases[source.branch] for name, cases in columns.items()}
            fields = {name: source.fields[text] for name, text in texts.items() if text in source.fields}
            constants = {name: _CONSTANTS[text] for name, text in texts.items() if text in _CONSTANTS}
            sources[number] = replace(
                source, fields={**source.fields, **fields}, constants={**source.constants, **constants}
            )
        return replace(self, sources=sources, parsed=parsed)

    def find_reasons(self, frame: DataFrame) -> DataFrame:
        """Add to bad messages that have no reason why they are bad."""
        return reduce(lambda found, source: source.find_reasons(found), self.sources.values(), frame)
