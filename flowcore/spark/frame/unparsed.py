"""The messages of a query's sources before Spark parses them.

Where a frame has nothing but what was read of a message, Python may read the messages itself while it packs
them for an exchange (`flowcore.keyed.message_reader`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame

from flowcore.keyed.conditions import Call, Condition
from flowcore.keyed.message_reader import MessageColumns, MessageSource
from flowcore.spark.frame.conditions import parse_condition
from flowcore.spark.frame.sql import quote, unquote

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
        computed: The condition on fields that a text is, by text.
        kept: The condition under which a record is one of the branch; None for all.
        timed: Its records carry their event time.
        advances: Their event time counts for watermarks.
        find_reasons: Adds to a frame why its messages are bad, to those that have no reason yet.
    """

    reader: MessageSource
    branch: int
    fields: Mapping[str, str]
    timed: bool
    advances: bool
    find_reasons: Callable[[DataFrame], DataFrame]
    constants: Mapping[str, Any] = field(default_factory=dict)
    computed: Mapping[str, Condition] = field(default_factory=dict)
    kept: Condition | None = None

    def condition(self, text: str) -> Condition | None:
        """A SQL text as a condition on fields; None if Spark has to evaluate it."""
        types = {column.name: column.type for column in self.reader.value_format.value_format.columns}
        fields = {unquote(column): (name, types[name]) for column, name in self.fields.items()}
        return parse_condition(text, fields)

    def keep(self, condition: Condition) -> UnparsedSource:
        """With fewer records in the branch."""
        kept = condition if self.kept is None else Call("and_kleene", (self.kept, condition))
        return replace(self, kept=kept)


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
            texts = {
                quote(name): text
                for name, cases in columns.items()
                if (text := cases.get(source.branch)) is not None
            }
            fields = {name: source.fields[text] for name, text in texts.items() if text in source.fields}
            constants = {name: _CONSTANTS[text] for name, text in texts.items() if text in _CONSTANTS}
            sources[number] = replace(
                source, fields={**source.fields, **fields}, constants={**source.constants, **constants}
            )
        return replace(self, sources=sources, parsed=parsed)

    def compute(self, branch: int, columns: Mapping[str, str], parsed: DataFrame) -> UnparsedMessages | None:
        """With computed columns in a branch; None if Spark has to compute one of them."""
        number, source = self._source_of(branch)
        found = {quote(name): source.condition(text) for name, text in columns.items()}
        computed = {name: each for name, each in found.items() if each is not None}
        changed = replace(source, computed={**source.computed, **computed})
        return self._with(number, changed, parsed) if len(computed) == len(columns) else None

    def filter(self, branch: int, condition: str, parsed: DataFrame) -> UnparsedMessages | None:
        """With the records of a branch for which a condition is true; None if Spark has to find them."""
        number, source = self._source_of(branch)
        found = source.condition(condition)
        return None if found is None else self._with(number, source.keep(found), parsed)

    def _source_of(self, branch: int) -> tuple[int, UnparsedSource]:
        return next(each for each in self.sources.items() if each[1].branch == branch)

    def _with(self, number: int, source: UnparsedSource, parsed: DataFrame) -> UnparsedMessages:
        return replace(self, sources={**self.sources, number: source}, parsed=parsed)

    def find_reasons(self, frame: DataFrame) -> DataFrame:
        """Add to bad messages that have no reason why they are bad."""
        sources = (each for each in self.sources.values() if each.reader.bad is not None)
        return reduce(lambda found, source: source.find_reasons(found), sources, frame)
