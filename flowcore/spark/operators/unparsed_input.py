"""Select rows that Spark has not read for packing, if Python can compute all that packing needs of them.

It can where each column is one of a message or of a packed output, or an expression of these that
`flowcore.spark.frame.arrow_sql` knows. Anything else is an expression of Spark:
`flowcore.spark.operators.exchange_input` selects it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import pyarrow as pa

from flowcore.keyed.arrow_expressions import ArrowExpression, Constant
from flowcore.keyed.key_group_hash import HASHED_TYPES
from flowcore.keyed.message_reader import MessageColumns, MessageSource
from flowcore.keyed.output_reader import Controls, Passing, Records
from flowcore.keyed.packing import InputColumns, Recipient
from flowcore.keyed.passing import PassingRows
from flowcore.keyed.record_columns import PackingColumns, RecordColumns
from flowcore.keyed.row_reader import RowReader
from flowcore.spark.frame.arrow_sql import ARROW_TYPES
from flowcore.spark.frame.branches import BranchedFrame
from flowcore.spark.frame.rows import BRANCH, VALUE
from flowcore.spark.frame.sql import unquote
from flowcore.spark.frame.unparsed import MESSAGE_COLUMNS, NULL, OUTPUT_COLUMN, UnparsedRows, UnparsedSource
from flowcore.spark.operators.exchange_input import Place, SelectedRows
from flowcore.spark.operators.key_group_context import PREFIX
from flowcore.spark.operators.keyed_step import StepMember, spread_null_keys
from flowcore.spark.operators.keys import key_group_text

__all__ = ["select_unparsed"]

_DECIDING = frozenset(
    {
        "spark.sql.ansi.enabled", "spark.sql.ansi.doubleQuotedIdentifiers",
        "spark.sql.jsonGenerator.ignoreNullFields", "spark.sql.legacy.consecutiveStringLiterals.enabled",
        "spark.sql.parser.escapedStringLiterals",
    }
)  # fmt: skip
"""Settings of Spark that decide what a SQL text means. If one is given, only Spark evaluates texts."""
_PASSES, _PASSING_VALUE, _ELEMENT = f"{PREFIX}passes", f"{PREFIX}passing0", f"{PREFIX}element"


@dataclass(slots=True)
class _Input:
    """The columns of packing's input that Python computes.

    Attributes:
        names: The column with a SQL text.
        found: For each source, what its columns are.
        key_groups: For each source, the columns of key groups.
    """

    rows: UnparsedRows
    names: dict[str, str] = field(default_factory=dict)
    types: dict[str, pa.DataType] = field(default_factory=dict)
    found: dict[int, dict[str, ArrowExpression]] = field(default_factory=dict)
    key_groups: dict[int, dict[str, tuple[tuple[str, ...], bool]]] = field(default_factory=dict)

    def share(self, text: str, kind: pa.DataType) -> str:
        """The column with a text."""
        name = self.names.setdefault(text, f"{PREFIX}c{len(self.names)}")
        self.types[name] = kind
        return name

    def compute(self, number: int, columns: Mapping[str, str]) -> bool:
        """Compute columns, with the texts that they have, in a source; whether Python can."""
        source, known = self.rows.sources[number], self.rows.known
        found = {name: source.find(text, known) for name, text in columns.items()}
        computed = {
            name: each[0]
            for name, each in found.items()
            if each is not None and ARROW_TYPES.get(each[1], self.types[name]) == self.types[name]
        }
        self.found.setdefault(number, {}).update(computed)
        return len(computed) == len(found)

    def records(self, number: int) -> RecordColumns:
        """The columns of a source's records."""
        source = self.rows.sources[number]
        return RecordColumns(
            columns={
                name: each for name, each in self.found.get(number, {}).items() if each != Constant(None)
            },
            key_groups=self.key_groups.get(number, {}),
            partition=(source.columns.get("partition") or NULL)[0],
            kept=source.kept,
            drops=source.drops,
        )


def select_unparsed(
    members: Sequence[StepMember],
    branched: BranchedFrame,
    others: Mapping[int, Collection[str]],
    passed: pa.Schema,
    place: Place,
) -> SelectedRows | None:
    """Select the rows before Spark reads them; None if Spark has to read them."""
    rows = branched.unread
    spark = members[0].step.context.settings.spark
    if rows is None or others or _pass_elements(rows, place) or not _DECIDING.isdisjoint(spark):
        return None
    inputs = _Input(rows)
    newest = place.newest_text(branched.frame.columns)
    if newest is not None:
        column = inputs.share(newest, pa.int64())
        if not all(inputs.compute(number, {column: newest}) for number in range(len(rows.sources))):
            return None
    recipients = [_recipient(member, inputs) for member in members]
    found = tuple(each for each in recipients if each is not None)
    if len(found) < len(members):
        return None
    named = MessageColumns(**{name: f"{PREFIX}{name}" for name in asdict(MESSAGE_COLUMNS)})
    texts = [f"{asdict(MESSAGE_COLUMNS)[name]} AS {now}" for name, now in asdict(named).items()]
    has_outputs = OUTPUT_COLUMN in rows.frame.columns
    passing = None
    if branched.has_bad:
        passing = PassingRows(schema=passed, passes=_PASSES, names={VALUE: _PASSING_VALUE})
    return SelectedRows(
        frame=rows.frame.selectExpr(*texts, *([OUTPUT_COLUMN] if has_outputs else [])),
        columns=InputColumns(
            channel=named.channel,
            offset=named.offset,
            newest=None if newest is None else inputs.names[newest],
            element=_ELEMENT if has_outputs else None,
        ),
        recipients=found,
        passing=passing,
        unparsed=rows,
        reader=_reader(named, inputs, members[0].step.context.query.key_groups, has_outputs=has_outputs),
    )


def _pass_elements(rows: UnparsedRows, place: Place) -> bool:
    """Whether control elements are for a later exchange; messages that Python can read are records."""
    senders = {each.source for each in rows.others.values() if isinstance(each, Controls)}
    return not senders.isdisjoint(place.passing_numbers)


def _recipient(member: StepMember, inputs: _Input) -> Recipient | None:
    """The columns of a member's records; None if Python cannot compute one of them."""
    step, key_groups = member.step, member.step.context.query.key_groups
    senders = [
        number
        for number, each in enumerate(inputs.rows.sources)
        if member.record == f"{BRANCH} = {each.branch}" or _is_constant(member.record, each)
    ]
    keys = [member.columns[name] for name in step.keys]
    by_key = key_group_text(keys, key_groups)
    spread = None
    if step.spreads_null_keys and step.row_name is None:
        spread = spread_null_keys(step, by_key, member.columns)
    if (
        not senders
        or member.key_group not in (by_key, spread)
        or not all(kind in HASHED_TYPES for kind in member.keys.types)
    ):
        return None
    kinds = {text: member.packed.field(name).type for name, text in member.columns.items()}
    names = {text: inputs.share(text, kind) for text, kind in kinds.items()}
    group = inputs.share(f"{member.record} {member.key_group}", pa.int32())
    spreads = member.key_group == spread and step.context.reads_topics
    for number in senders:
        if not inputs.compute(number, {name: text for text, name in names.items()}):
            return None
        mine = inputs.key_groups.setdefault(number, {})
        mine[group] = tuple(names[key] for key in keys), spreads
    return Recipient(key_group=group, columns=tuple(names[text] for text in member.columns.values()))


def _is_constant(condition: str, source: UnparsedSource) -> bool:
    """Whether a condition holds in all records of a source, since a column has a value in each."""
    column, _, test = condition.partition(" ")
    found = source.columns.get(unquote(column) if column.startswith("`") else column)
    if test != "IS NOT NULL" or found is None:
        return False
    return isinstance(found[0], Constant) and found[0].value is not None


def _reader(named: MessageColumns, inputs: _Input, key_groups: int, *, has_outputs: bool) -> RowReader:
    kinds: dict[str, pa.DataType] = {
        named.channel: pa.int64(), named.offset: pa.int64(),
        **({_ELEMENT: pa.binary()} if has_outputs else {}),
        _PASSES: pa.string(), _PASSING_VALUE: pa.binary(), **inputs.types,
    }  # fmt: skip
    messages: dict[int, tuple[MessageSource, RecordColumns]] = {}
    outputs: dict[str, Records | Controls | Passing] = {**inputs.rows.others}
    for number, source in enumerate(inputs.rows.sources):
        records, reader = inputs.records(number), source.reader
        if isinstance(reader, MessageSource):
            messages[source.number] = reader, records
        else:
            outputs[reader.name] = Records(source=source.number, schema=reader.schema, records=records)
    return RowReader(
        names=named,
        output=OUTPUT_COLUMN if has_outputs else None,
        messages=messages,
        outputs=outputs,
        into=PackingColumns(
            schema=pa.schema(kinds),
            channel=named.channel,
            offset=named.offset,
            passes=_PASSES,
            passing_value=_PASSING_VALUE,
            key_groups=key_groups,
            element=_ELEMENT if has_outputs else None,
        ),
    )
