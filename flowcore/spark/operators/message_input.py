"""Select messages for packing, if Python can compute all that packing needs of them.

It can where each column is a field, the time or the place of a message. Anything else is an expression of
Spark: `flowcore.spark.operators.exchange_input` selects it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from flowcore.keyed.key_group_hash import HASHED_TYPES
from flowcore.keyed.message_reader import MessageColumns, MessageReader, RecordColumns
from flowcore.keyed.packing import InputColumns, Recipient
from flowcore.keyed.passing import PassingRows
from flowcore.spark.frame.branches import BranchedFrame
from flowcore.spark.frame.rows import (
    BRANCH,
    KAFKA_MS,
    NEWEST,
    RECORD_ORDINAL,
    SOURCE,
    TIMESTAMP_MS,
    VALUE,
)
from flowcore.spark.frame.sql import quote
from flowcore.spark.frame.unparsed import MESSAGE_COLUMNS, UnparsedMessages
from flowcore.spark.operators.exchange_input import Place, SelectedRows
from flowcore.spark.operators.key_group_context import PREFIX
from flowcore.spark.operators.keyed_step import StepMember, spread_null_keys
from flowcore.spark.operators.keys import key_group_text

__all__ = ["select_messages"]

_PASSES, _PASSING_VALUE = f"{PREFIX}passes", f"{PREFIX}passing0"


@dataclass(slots=True)
class _Columns:
    """The columns of packing's input that Python computes, by SQL text."""

    messages: UnparsedMessages
    names: dict[str, str] = field(default_factory=dict)
    types: dict[str, pa.DataType] = field(default_factory=dict)
    key_groups: dict[int, dict[str, tuple[tuple[str, ...], bool]]] = field(default_factory=dict)

    def share(self, text: str, kind: pa.DataType) -> str:
        """The column with a text."""
        name = self.names.setdefault(_as_python(text), f"{PREFIX}c{len(self.names)}")
        self.types[name] = kind
        return name

    def can_read(self, text: str) -> bool:
        """Whether Python can compute a text."""
        text = _as_python(text)
        known = (TIMESTAMP_MS, NEWEST, SOURCE, RECORD_ORDINAL, "partition", "offset")
        sources = self.messages.sources.values()
        return text in known or any(
            text in texts for each in sources for texts in (each.fields, each.constants, each.computed)
        )

    def of_source(self, number: int) -> RecordColumns:
        """The columns that the records of a source have."""
        source = self.messages.sources[number]
        texts: dict[str, list[str]] = {text: [name] for text, name in self.names.items()}
        times = texts.get(TIMESTAMP_MS, []) if source.timed else []
        times = [*times, *(texts.get(NEWEST, []) if source.advances else [])]
        constants = {SOURCE: number, RECORD_ORDINAL: "0", **source.constants}
        return RecordColumns(
            fields={name: source.fields[text] for text, name in self.names.items() if text in source.fields},
            times=times,
            partitions=texts.get("partition", []),
            offsets=texts.get("offset", []),
            constants={self.names[text]: each for text, each in constants.items() if text in self.names},
            key_groups=self.key_groups.get(number, {}),
            computed={self.names[text]: each for text, each in source.computed.items() if text in self.names},
            kept=source.kept,
        )


def select_messages(
    members: Sequence[StepMember],
    branched: BranchedFrame,
    others: Mapping[int, Collection[str]],
    passed: pa.Schema,
    place: Place,
) -> SelectedRows | None:
    """Select the messages of a frame; None if Spark has to read them."""
    messages = branched.unread
    if messages is None or others:
        return None
    columns = _Columns(messages)
    newest = place.newest_text(branched.frame.columns)
    newest = newest and columns.share(newest, pa.int64())
    found = [_recipient(member, columns) for member in members]
    recipients = tuple(each for each in found if each is not None)
    if len(recipients) < len(members):
        return None
    named = MessageColumns(**{name: f"{PREFIX}{name}" for name in asdict(MESSAGE_COLUMNS)})
    passing = None
    if branched.has_bad:
        passing = PassingRows(schema=passed, passes=_PASSES, names={VALUE: _PASSING_VALUE})
    return SelectedRows(
        frame=messages.frame.selectExpr(
            *(f"{asdict(MESSAGE_COLUMNS)[name]} AS {now}" for name, now in asdict(named).items())
        ),
        columns=InputColumns(channel=named.channel, offset=named.offset, newest=newest),
        recipients=recipients,
        passing=passing,
        messages=messages,
        reader=_reader(named, columns, members[0].step.context.query.key_groups),
    )


def _recipient(member: StepMember, columns: _Columns) -> Recipient | None:
    """The columns of a member's records; None if Python cannot compute one of them."""
    step, key_groups = member.step, member.step.context.query.key_groups
    senders = [
        number
        for number, each in columns.messages.sources.items()
        if member.record == f"{BRANCH} = {each.branch}" or _is_constant(member.record, each.constants)
    ]
    keys = [member.columns[name] for name in step.keys]
    by_key = key_group_text(keys, key_groups)
    spread = step.spreads_null_keys and spread_null_keys(step, by_key, member.columns)
    if (
        not senders
        or member.key_group not in (by_key, spread)
        or not all(kind in HASHED_TYPES for kind in member.keys.types)
        or not all(map(columns.can_read, member.columns.values()))
    ):
        return None
    kinds = {text: member.packed.field(name).type for name, text in member.columns.items()}
    names = {text: columns.share(text, kind) for text, kind in kinds.items()}
    group = columns.share(f"{member.record} {member.key_group}", pa.int32())
    for number in senders:
        mine = columns.key_groups.setdefault(number, {})
        mine[group] = tuple(names[key] for key in keys), member.key_group == spread
    return Recipient(key_group=group, columns=tuple(names[text] for text in member.columns.values()))


def _as_python(text: str) -> str:
    """A text for Python, whose strings are valid anyway."""
    return text.removeprefix("make_valid_utf8(").removesuffix(")") if text.startswith("make_valid") else text


def _is_constant(condition: str, constants: Mapping[str, Any]) -> bool:
    """Whether a condition holds in all records of a source, since a column has a value in each."""
    column, _, test = condition.partition(" ")
    return test == "IS NOT NULL" and constants.get(quote(column)) is not None


def _reader(named: MessageColumns, columns: _Columns, key_groups: int) -> MessageReader:
    sources = columns.messages.sources
    kinds: dict[str, pa.DataType] = {
        named.channel: pa.int64(), named.offset: pa.int64(),
        _PASSES: pa.string(), _PASSING_VALUE: pa.binary(), **columns.types,
    }  # fmt: skip
    return MessageReader(
        columns=named,
        sources={number: (each.reader, columns.of_source(number)) for number, each in sources.items()},
        passes=_PASSES,
        passing_value=_PASSING_VALUE,
        passing_names=("partition", "offset", KAFKA_MS),
        schema=pa.schema(kinds),
        key_groups=key_groups,
    )
