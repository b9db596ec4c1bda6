"""Select the input of packing from rows that Spark has not read, if Python can compute all of it.

It can where each column is one of a message or of a packed output, or an expression of these that
`flowcore.spark.frame.arrow_sql` knows. Anything else is an expression of Spark:
`flowcore.spark.operators.exchange_input` selects it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import pyarrow as pa

from flowcore.keyed.arrow_expressions import ArrowExpression, Constant, fields_of
from flowcore.keyed.key_group_hash import HASHED_TYPES
from flowcore.keyed.message_reader import MessageColumns, MessageSource
from flowcore.keyed.output_reader import ControlOutput, PassingOutput, RecordOutput
from flowcore.keyed.packing import InputColumns, Recipient
from flowcore.keyed.passing import PassingRows
from flowcore.keyed.record_columns import PackingColumns, RecordColumns
from flowcore.keyed.row_reader import RowReader
from flowcore.spark.frame.arrow_sql import ARROW_TYPES, NULL
from flowcore.spark.frame.branches import BranchedFrame
from flowcore.spark.frame.rows import BRANCH, VALUE
from flowcore.spark.frame.sql import unquote
from flowcore.spark.frame.unparsed import MESSAGE_COLUMNS, OUTPUT_COLUMN, UnparsedRows, UnparsedSource
from flowcore.spark.operators.exchange_input import Place, SelectedRows
from flowcore.spark.operators.key_group_context import PREFIX
from flowcore.spark.operators.keyed_step import StepMember, spread_null_keys
from flowcore.spark.operators.keys import key_group_text

__all__ = ["select_unparsed"]

_SQL_SETTINGS = frozenset(
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
        names: The column of each SQL text.
        types: The type of each column.
        found: By index of a source, its expression for each column.
        key_groups: By index of a source, the columns of its key groups.
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

    def compute(self, index: int, columns: Mapping[str, str]) -> bool:
        """Compute columns, with the texts that they have, in a source; whether Python can."""
        source, known = self.rows.sources[index], self.rows.known
        found = {name: source.find(text, known) for name, text in columns.items()}
        computed = {
            name: each[0]
            for name, each in found.items()
            if each is not None and ARROW_TYPES.get(each[1], self.types[name]) == self.types[name]
        }
        self.found.setdefault(index, {}).update(computed)
        return len(computed) == len(found)

    def records(self, index: int) -> RecordColumns:
        """The columns of a source's records."""
        source = self.rows.sources[index]
        return RecordColumns(
            columns={name: each for name, each in self.found.get(index, {}).items() if each != NULL[0]},
            key_groups=self.key_groups.get(index, {}),
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
    if rows is None or others or _pass_elements(rows, place) or not _SQL_SETTINGS.isdisjoint(spark):
        return None
    inputs = _Input(rows)
    newest = place.newest_text(branched.frame.columns)
    if newest is not None:
        column = inputs.share(newest, pa.int64())
        if not all(inputs.compute(index, {column: newest}) for index in range(len(rows.sources))):
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
    senders = {each.source for each in rows.without_records.values() if isinstance(each, ControlOutput)}
    return not senders.isdisjoint(place.passing_numbers)


def _recipient(member: StepMember, inputs: _Input) -> Recipient | None:
    """The columns of a member's records; None if Python cannot compute one of them."""
    step, key_groups = member.step, member.step.context.query.key_groups
    sent = [_sends(each, member) for each in inputs.rows.sources]
    senders = [index for index, each in enumerate(sent) if each]
    keys = [member.columns[name] for name in step.keys]
    by_key = key_group_text(keys, key_groups)
    spread = None
    if step.spreads_null_keys and step.row_name is None:
        spread = spread_null_keys(step, by_key, member.columns)
    if (
        not senders
        or None in sent
        or member.key_group not in (by_key, spread)
        or not all(kind in HASHED_TYPES for kind in member.keys.types)
    ):
        return None
    kinds = {text: member.packed.field(name).type for name, text in member.columns.items()}
    names = {text: inputs.share(text, kind) for text, kind in kinds.items()}
    group = inputs.share(f"{member.record} {member.key_group}", pa.int32())
    spreads = member.key_group == spread and step.context.reads_topics
    for index in senders:
        if not inputs.compute(index, {name: text for text, name in names.items()}):
            return None
        mine = inputs.key_groups.setdefault(index, {})
        mine[group] = tuple(names[key] for key in keys), spreads
    return Recipient(key_group=group, columns=tuple(names[text] for text in member.columns.values()))


def _sends(source: UnparsedSource, member: StepMember) -> bool | None:
    """Whether the records of a source are those of a member: all or none. None if it may be some of them."""
    if member.record == f"{BRANCH} = {source.branch}":
        return True
    column, _, test = member.record.partition(" ")
    if test != "IS NOT NULL":
        return False
    name = unquote(column) if column.startswith("`") else column
    found = source.columns.get(name, NULL)
    return found[0].value is not None if found is not None and isinstance(found[0], Constant) else None


def _reader(named: MessageColumns, inputs: _Input, key_groups: int, *, has_outputs: bool) -> RowReader:
    kinds: dict[str, pa.DataType] = {
        named.channel: pa.int64(), named.offset: pa.int64(),
        **({_ELEMENT: pa.binary()} if has_outputs else {}),
        _PASSES: pa.string(), _PASSING_VALUE: pa.binary(), **inputs.types,
    }  # fmt: skip
    messages: dict[int, tuple[MessageSource, RecordColumns]] = {}
    outputs: dict[str, RecordOutput | ControlOutput | PassingOutput] = {**inputs.rows.without_records}
    for index, source in enumerate(inputs.rows.sources):
        records, reader = inputs.records(index), source.reader
        if isinstance(reader, MessageSource):
            computed = [*records.columns.values(), records.partition]
            used = fields_of(computed if records.kept is None else [*computed, records.kept])
            timed = used if reader.time is None else used | {reader.time}
            messages[source.number] = replace(reader, used=timed), records
        else:
            outputs[reader.name] = RecordOutput(source=source.number, schema=reader.schema, records=records)
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
