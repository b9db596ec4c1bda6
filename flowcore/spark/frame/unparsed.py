"""Rows of a query before Spark reads them: the messages of topics, and what an exchange has packed.

Where all that an exchange needs of a frame can be computed in Python, the call that packs its input reads
them (`flowcore.keyed.row_reader`), and Spark makes no rows of them. So `UnparsedRows` lie beside the frame
that Spark would make of them, and follow what is done to that frame, as long as Python can do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame

from flowcore.keyed.arrow_expressions import ArrowExpression, FunctionCall
from flowcore.keyed.message_reader import MessageColumns, MessageSource
from flowcore.keyed.output_reader import ControlOutput, PassingOutput
from flowcore.spark.frame.arrow_sql import NULL, TypedExpression, parse_expression

__all__ = ["MESSAGE_COLUMNS", "OUTPUT_COLUMN", "PackedOutput", "UnparsedRows", "UnparsedSource"]

MESSAGE_COLUMNS = MessageColumns(
    channel="_channel", offset="_offset", value="_value", written_ms="_written_ms", latest_ms="_latest_ms"
)
"""The columns of `UnparsedRows.frame`."""
OUTPUT_COLUMN = "_output"
"""Its column with the name of a packed output; only if there are some."""
_Columns = Mapping[str, TypedExpression | None]


@dataclass(frozen=True, slots=True)
class PackedOutput:
    """An output of an operator upstream, by its name in `OUTPUT_COLUMN`."""

    name: str
    schema: pa.Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class UnparsedSource:
    """A topic, or an output of an operator upstream, whose records Python can read.

    Attributes:
        number: Its number, or that of the operator, among the query's sources.
        branch: The number of the branch of its records.
        columns: What each column of its records is; None for one that only Spark can compute.
        is_utf8: Its texts are UTF-8.
        kept: The condition under which a record is one of the branch; None for all.
        drops: Other records are gone. Otherwise their event time still counts.
    """

    reader: MessageSource | PackedOutput
    number: int
    branch: int
    columns: _Columns
    is_utf8: bool = True
    kept: ArrowExpression | None = None
    drops: bool = False

    def find(self, text: str, known: _Columns) -> TypedExpression | None:
        """What a SQL text is in its records; None if only Spark can compute it.

        Args:
            known: The columns of the frame, which are null in this source if it does not have them.
        """
        return parse_expression(text, {**known, **self.columns}, is_utf8=self.is_utf8)

    def keep(self, condition: ArrowExpression, *, drops: bool) -> UnparsedSource:
        """With fewer records in the branch."""
        kept = condition if self.kept is None else FunctionCall("and_kleene", (self.kept, condition))
        return replace(self, kept=kept, drops=drops)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnparsedRows:
    """The messages of some topics, and packed outputs.

    Attributes:
        frame: The rows, in `MESSAGE_COLUMNS`; packed outputs also have `OUTPUT_COLUMN`.
        parsed: The frame that Spark makes of them. Any other frame has more or fewer rows or columns.
        without_records: The packed outputs without records, by name.
        reasons: Each adds to a frame why its messages are bad, to those that have no reason yet.
    """

    frame: DataFrame
    parsed: DataFrame
    sources: Sequence[UnparsedSource]
    without_records: Mapping[str, ControlOutput | PassingOutput] = field(default_factory=dict)
    reasons: Sequence[Callable[[DataFrame], DataFrame]] = ()

    @classmethod
    def unite(cls, members: Sequence[UnparsedRows], parsed: DataFrame) -> UnparsedRows:
        """The rows of several frames that were united in one."""
        frames = (each.frame for each in members)
        return cls(
            frame=reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames),
            parsed=parsed,
            sources=[source for each in members for source in each.sources],
            without_records={
                name: output for each in members for name, output in each.without_records.items()
            },
            reasons=[reason for each in members for reason in each.reasons],
        )

    @property
    def known(self) -> _Columns:
        """The columns of all sources, as they are in a source that does not have them."""
        return dict.fromkeys((name for source in self.sources for name in source.columns), NULL)

    def compute(self, branch: int, columns: Mapping[str, str], parsed: DataFrame) -> UnparsedRows:
        """With computed columns in a branch."""
        return self.choose({name: {branch: text} for name, text in columns.items()}, parsed)

    def choose(self, columns: Mapping[str, Mapping[int, str]], parsed: DataFrame) -> UnparsedRows:
        """With columns that have another text in each branch, and are null in others."""
        return self._set(columns, parsed, otherwise=NULL)

    def set_in_branches(self, columns: Mapping[str, Mapping[int, str]], parsed: DataFrame) -> UnparsedRows:
        """With other texts of columns in some branches."""
        return self._set(columns, parsed, otherwise=None)

    def filter(self, branch: int, condition: str, parsed: DataFrame, *, drops: bool) -> UnparsedRows | None:
        """With the records of a branch for which a condition is true; None if Spark has to find them.

        Args:
            drops: The other records are gone.
        """
        known, sources = self.known, []
        for source in self.sources:
            if source.branch != branch:
                sources.append(source)
                continue
            found = source.find(condition, known)
            if found is None or found[1] != "BOOLEAN" or (source.kept and source.drops != drops):
                return None
            sources.append(source.keep(found[0], drops=drops))
        return replace(self, sources=sources, parsed=parsed)

    def find_reasons(self, frame: DataFrame) -> DataFrame:
        """Add to bad messages that have no reason why they are bad."""
        return reduce(lambda found, reason: reason(found), self.reasons, frame)

    def _set(
        self,
        columns: Mapping[str, Mapping[int, str]],
        parsed: DataFrame,
        *,
        otherwise: TypedExpression | None,
    ) -> UnparsedRows:
        known, sources = self.known, []
        for source in self.sources:
            found: dict[str, TypedExpression | None] = {}
            for name, cases in columns.items():
                if (text := cases.get(source.branch)) is not None:
                    found[name] = source.find(text, known)
                elif otherwise is not None:
                    found[name] = otherwise
            sources.append(replace(source, columns={**source.columns, **found}))
        return replace(self, sources=sources, parsed=parsed)
