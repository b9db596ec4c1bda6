"""Select what packing needs of the rows before an exchange.

Operators share columns: a source may be read by many of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from flowcore.api.operators import Operator, WithEventTime
from flowcore.keyed.control import PARTITION_BITS
from flowcore.keyed.packing import InputColumns, Recipient
from flowcore.keyed.passing import PassingRows
from flowcore.keyed.row_reader import RowReader
from flowcore.spark.frame.branches import BranchedFrame
from flowcore.spark.frame.rows import (
    BACKLOG,
    BAD_REASON,
    BRANCH,
    CHANNEL,
    ELEMENT,
    FAILED_OPERATOR,
    KAFKA_KEY,
    KAFKA_MS,
    KEY_GROUP,
    NEWEST,
    POSITION,
    RECORD_ID,
    RECORD_ORDINAL,
    SOURCE,
    TIMESTAMP_MS,
    VALUE,
    RowKind,
)
from flowcore.spark.frame.sql import json_object, quote
from flowcore.spark.frame.unparsed import UnparsedRows
from flowcore.spark.operators.key_group_context import PREFIX, KeyGroupContext, begins_channels
from flowcore.spark.operators.keyed_step import StepMember

__all__ = ["Place", "SelectedRows", "passing_columns", "select_rows"]

_PASSING = (
    BRANCH, "topic", "partition", "offset", RECORD_ID, RECORD_ORDINAL, TIMESTAMP_MS, BAD_REASON, VALUE,
    KAFKA_MS, KAFKA_KEY, FAILED_OPERATOR, BACKLOG,
)  # fmt: skip
"""The columns of rows that pass key groups, besides those of their branches."""
_CHANNELS = (SOURCE, NEWEST, ELEMENT, CHANNEL, KEY_GROUP, POSITION)
"""The same, if there is another exchange downstream."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an exchange is in its query.

    Attributes:
        depth: 1 for the first exchange.
        upstream: The operators of the exchanges before it.
        later: The senders of the operators of the exchanges after it; none if it is the last exchange.
        sources: All topics and operators with state of the query.
    """

    depth: int
    upstream: Sequence[Operator]
    later: frozenset[Operator]
    sources: Sequence[Operator]

    @classmethod
    def find(cls, nodes: Sequence[Operator], context: KeyGroupContext) -> Place:
        exchanges = context.query.exchanges
        depth = next(number for number, each in enumerate(exchanges, 1) if nodes[0] in each)
        before = [node for exchange in exchanges[: depth - 1] for node in exchange]
        after = [node for exchange in exchanges[depth:] for node in exchange]
        later = frozenset(each for node in after for each in context.query.find_senders(node))
        return cls(depth, before, later, context.sources)

    @property
    def _is_by_timestamp(self) -> bool:
        """Whether a record's timestamp is the time that counts for watermarks, if any counts."""
        strategies = [each.watermark for each in self.sources if begins_channels(each)]
        return self.depth == 1 and all(each is not None and each.by_timestamp for each in strategies)

    def newest_text(self, existing: Collection[str]) -> str | None:
        """The column of the time that counts for watermarks; None if no row of a frame has one."""
        if NEWEST not in existing:
            return None
        return TIMESTAMP_MS if self._is_by_timestamp and TIMESTAMP_MS in existing else NEWEST

    @property
    def passing_numbers(self) -> list[int]:
        """The numbers of the senders whose control elements a later exchange needs."""
        reached = {*self.upstream, *filter(begins_channels, self.sources)}
        followed = {
            source for each in self.later if isinstance(each, WithEventTime) for source in each.live_sources
        }
        needed = (self.later & reached) | followed
        return [number for number, each in enumerate(self.sources) if each in needed]


@dataclass(frozen=True, slots=True)
class SelectedRows:
    """Rows with what packing needs.

    Attributes:
        columns: The names of their columns other than those of records.
        passing: Which rows pass the exchange; None if no rows do.
        unparsed: What the rows are, if Spark does not read them, but Python.
        reader: Reads these rows.
    """

    frame: DataFrame
    columns: InputColumns
    recipients: tuple[Recipient, ...]
    passing: PassingRows | None
    unparsed: UnparsedRows | None = None
    reader: RowReader | None = None


def select_rows(
    members: Sequence[StepMember],
    branched: BranchedFrame,
    others: Mapping[int, Collection[str]],
    passed: pa.Schema,
    place: Place,
) -> SelectedRows:
    """Select what packing needs. Operators share columns: a source may be read by many of them."""
    existing = branched.frame.columns
    is_control = f"{BRANCH} = {RowKind.CONTROL}"
    partition, offset = "partition", "offset"
    if KEY_GROUP in existing:
        # Markers and rows of other branches have a partition only.
        partition = f"coalesce({KEY_GROUP}, partition)" if "partition" in existing else KEY_GROUP
        offset = f"coalesce({POSITION}, offset)" if "offset" in existing else POSITION
    channel = f"shiftleft(CAST({SOURCE} AS BIGINT), {PARTITION_BITS}) + {partition}"
    texts = {"channel": channel, "offset": offset}
    if ELEMENT in existing:
        texts["element"] = f"CASE WHEN {is_control} THEN {ELEMENT} END"
        texts |= {"sender": CHANNEL} if CHANNEL in existing else {}
    if branched.has_markers:
        texts["marker"] = f"CASE WHEN {BRANCH} = {RowKind.MARKER} THEN {VALUE} END"
    passing = None
    if condition := _passing_condition(branched, others, place):
        # Not one struct: Arrow's writer asks for the size of all its columns after each row.
        own = [each.name for each in passed if others or pa.types.is_binary(each.type)]
        names = {name: f"passing{number}" for number, name in enumerate(own)}
        row = json_object({name: quote(name) for name in passed.names if name not in names})
        passing_texts = {"passes": "true" if others else row, **{names[name]: quote(name) for name in own}}
        texts |= {name: f"CASE WHEN {condition} THEN {text} END" for name, text in passing_texts.items()}
        by_name = {name: PREFIX + now for name, now in names.items()}
        passing = PassingRows(schema=passed, passes=f"{PREFIX}passes", names=by_name)
    shared: dict[str, str] = {}

    def share(text: str) -> str:
        return shared.setdefault(text, f"{PREFIX}c{len(shared)}")

    newest = place.newest_text(existing)
    newest = newest and share(newest)
    recipients = tuple(
        Recipient(
            key_group=share(f"CASE WHEN {each.record} THEN {each.key_group} END"),
            columns=tuple(map(share, each.columns.values())),
        )
        for each in members
    )
    frame = branched.frame.selectExpr(
        *(f"{text} AS {PREFIX}{name}" for name, text in texts.items()),
        *(f"{text} AS {name}" for text, name in shared.items()),
    )
    optional = {each: f"{PREFIX}{each}" for each in ("element", "sender", "marker") if each in texts}
    inputs = InputColumns(channel=f"{PREFIX}channel", offset=f"{PREFIX}offset", newest=newest, **optional)
    return SelectedRows(frame, inputs, recipients, passing)


def _passing_condition(branched: BranchedFrame, others: Collection[int], place: Place) -> str:
    """SQL text that is true for the rows that pass the exchange; empty if no rows do."""
    numbers = [*([RowKind.BAD] if branched.has_bad else []), *others]
    conditions = [f"{BRANCH} IN ({', '.join(map(str, numbers))})"] if numbers else []
    if place.passing_numbers and ELEMENT in branched.frame.columns:
        controls = f"{SOURCE} IN ({', '.join(map(str, place.passing_numbers))})"
        conditions.append(f"{BRANCH} = {RowKind.CONTROL} AND {controls}")
    return " OR ".join(conditions)


def passing_columns(
    branched: BranchedFrame, others: Mapping[int, Collection[str]], place: Place, *, timed: bool
) -> list[str]:
    """The columns of the rows that pass the exchange; none if no rows pass it.

    Timestamps pass if they are `timed`: otherwise nothing downstream reads them.
    """
    if not branched.has_bad and not others and not place.passing_numbers:
        return []
    existing = {*branched.frame.columns} - (set() if timed else {TIMESTAMP_MS})
    of_branches = (name for columns in others.values() for name in columns)
    engine = (*_PASSING, *(_CHANNELS if place.later else ()))
    return [*(name for name in engine if name in existing), *dict.fromkeys(of_branches)]
