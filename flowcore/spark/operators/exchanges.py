"""Run an exchange: rows are shuffled to key groups, where all operators with state of one depth run.

Rows of other branches, bad messages and dead letters pass it as packed batches that nobody opens. If an
operator with state is downstream of another one, its channels are the key groups of that one, which emit
watermarks and other control elements between their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from flowcore.api.operators import Operator, StatefulOperator
from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.keyed.dead_letters import DEAD_LETTERS
from flowcore.keyed.exchange import Exchange
from flowcore.keyed.packing import InputColumns, Packing, Recipient, SeenRows
from flowcore.keyed.runtime import Runtime
from flowcore.planner.model import find_senders
from flowcore.spark.checkpoint.backlog_status import read_backlog_status
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.rows import (
    BAD_REASON,
    BRANCH,
    CHANNEL,
    ELEMENT,
    FAILED_OPERATOR,
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
from flowcore.spark.frame.sql import quote
from flowcore.spark.operators.dead_letters import dead_letter_columns
from flowcore.spark.operators.key_groups import run_key_groups
from flowcore.spark.operators.keyed_step import PREFIX, KeyGroupContext, StepMember
from flowcore.spark.operators.step_rows import StepRows, text_by_branch, unpack_step
from flowcore.watermarks.strategies import PeriodicFunction

__all__ = ["run_exchange"]

_PASSING = (
    BRANCH, "topic", "partition", "offset", RECORD_ID, RECORD_ORDINAL, TIMESTAMP_MS, BAD_REASON, VALUE,
    KAFKA_MS, FAILED_OPERATOR,
)  # fmt: skip
"""The columns of rows that pass key groups, besides those of their branches."""
_CHANNELS = (SOURCE, NEWEST, ELEMENT, CHANNEL, KEY_GROUP, POSITION)
"""The same, if there is another exchange downstream."""


def run_exchange(
    members: Sequence[StepMember],
    branched: BranchedFrame,
    others: Mapping[int, Collection[str]],
    context: KeyGroupContext,
) -> tuple[BranchedFrame, Mapping[Operator, Branch]]:
    """Run operators of one depth on their key groups; latency markers and rows of other branches pass them.

    Args:
        members: The operators.
        branched: The frame with their records.
        others: The columns of the other branches of the frame, by number of the branch.
        context: The query.

    Returns:
        The frame of all outputs and of the rows that passed, and the branch of each output.
    """
    place = _Place.find(members, context)
    timed = any(context.query.carries_timestamps(each.inputs.node) for each in members)
    passing = _passing_columns(branched, others, place, timed=timed)
    frame, recipients = _select(members, branched, others, passing, place)
    if place.depth == 1:
        backlog = read_backlog_status(frame.sparkSession, Path(context.checkpoint))
        backlog = backlog.selectExpr(f"at AS {PREFIX}offset", f"backlog AS {PREFIX}backlog")
        frame = frame.unionByName(backlog, allowMissingColumns=True)
    passed = to_arrow_schema(StructType([branched.frame.schema[name] for name in passing]), timezone="UTC")
    packing = Packing(
        inputs=_input_columns(frame),
        sources=tuple(each.name for each in context.sources),
        key_groups=context.query.key_groups,
        recipients=recipients,
        upstream=frozenset(each.name for each in place.upstream),
        later=_seen_rows(passed, place),
        functions=_watermark_functions(context) if place.depth == 1 else {},
    )
    runtimes = tuple(_runtime(member, place, context) for member in members)
    exchange = Exchange(query=f"{context.checkpoint}/{place.depth}", runtimes=runtimes)
    step = unpack_step(
        members, run_key_groups(frame, packing, exchange),
        names=branched.names, passing=passed if passing else None,
        numbers=[context.sources.index(each.inputs.node) for each in members] if place.later else None,
    )  # fmt: skip
    return _add_columns(members, step, branched, others, context)


@dataclass(frozen=True, slots=True)
class _Place:
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
    def find(cls, members: Sequence[StepMember], context: KeyGroupContext) -> _Place:
        exchanges, first = context.query.exchanges, members[0].inputs.node
        depth = next((number for number, each in enumerate(exchanges, 1) if first in each), 1)
        before = [node for exchange in exchanges[: depth - 1] for node in exchange]
        after = [node for exchange in exchanges[depth:] for node in exchange]
        later = frozenset(each for node in after for each in find_senders(node))
        return cls(depth, before, later, context.sources)

    @property
    def passing_numbers(self) -> list[int]:
        """The numbers of the senders whose control elements a later exchange needs."""
        reached = {*self.upstream, *(each for each in self.sources if not isinstance(each, StatefulOperator))}
        return [number for number, each in enumerate(self.sources) if each in self.later & reached]


def _select(
    members: Sequence[StepMember],
    branched: BranchedFrame,
    others: Mapping[int, Collection[str]],
    passing: Sequence[str],
    place: _Place,
) -> tuple[DataFrame, tuple[Recipient, ...]]:
    """The rows with what packing needs. Operators share columns: a source may be read by many of them."""
    existing = branched.frame.columns
    is_control = f"{BRANCH} = {RowKind.CONTROL}"
    texts = {"source": SOURCE, "partition": "partition", "offset": "offset"}
    if KEY_GROUP in existing:
        known = "partition" in existing and "offset" in existing
        texts["partition"] = f"coalesce({KEY_GROUP}, partition)" if known else KEY_GROUP
        texts["offset"] = f"coalesce({POSITION}, offset)" if known else POSITION
    texts |= {"newest_ms": NEWEST} if NEWEST in existing else {}
    if ELEMENT in existing:
        texts["element"] = f"CASE WHEN {is_control} THEN {ELEMENT} END"
        texts |= {"sender": CHANNEL} if CHANNEL in existing else {}
    if branched.has_markers:
        texts["event"] = f"CASE WHEN {BRANCH} = {RowKind.MARKER} THEN {VALUE} END"
    if passing:
        numbers = [*([RowKind.BAD] if branched.has_bad else []), *others]
        conditions = [f"{BRANCH} IN ({', '.join(map(str, numbers))})"] if numbers else []
        if place.passing_numbers and ELEMENT in existing:
            conditions.append(f"{is_control} AND {SOURCE} IN ({', '.join(map(str, place.passing_numbers))})")
        row = f"struct({', '.join(map(quote, passing))})"
        texts |= {"passing": f"CASE WHEN {' OR '.join(conditions)} THEN {row} END"} if conditions else {}
    shared: dict[str, str] = {}

    def share(text: str) -> str:
        return shared.setdefault(text, f"{PREFIX}c{len(shared)}")

    recipients = tuple(
        Recipient(
            key_group=share(each.inputs.key_group),
            record=share(each.inputs.record),
            columns=tuple(map(share, each.inputs.columns.values())),
        )
        for each in members
    )
    frame = branched.frame.selectExpr(
        *(f"{text} AS {PREFIX}{name}" for name, text in texts.items()),
        *(f"{text} AS {name}" for text, name in shared.items()),
    )
    return frame, recipients


def _runtime(member: StepMember, place: _Place, context: KeyGroupContext) -> Runtime:
    node = member.inputs.node
    return Runtime(
        operator=member.operator,
        query=f"{context.checkpoint}/{node.name}",
        key_groups=context.query.key_groups,
        sources=member.inputs.context.watermark_sources(),
        rows=member.inputs.packed,
        records=member.inputs.records,
        name=node.name,
        emits_control=node in place.later,
        reads_control=member.inputs.context.reads_operators,
        max_cache_bytes=context.max_cache_bytes,
    )


def _add_columns(
    members: Sequence[StepMember],
    step: StepRows,
    before: BranchedFrame,
    others: Mapping[int, Collection[str]],
    context: KeyGroupContext,
) -> tuple[BranchedFrame, Mapping[Operator, Branch]]:
    """The frame of an exchange's rows with the columns that its operators add."""
    existing = step.frame.columns
    outputs = [each.finish(found) for each, found in zip(members, step.columns, strict=True)]
    texts = {name: text for output in outputs for name, text in output.columns.items()}
    by_branch: dict[str, dict[int, str]] = {RECORD_ID: {}}
    for output in outputs:
        for name, cases in output.by_branch.items():
            by_branch.setdefault(name, {}).update(cases)
    texts |= {
        name: text_by_branch(cases, name if name in existing else None) for name, cases in by_branch.items()
    }
    has_dead_letters = any(DEAD_LETTERS in each.branches for each in members)
    if has_dead_letters:
        texts |= dead_letter_columns(step.dead_letters, context, texts, existing)
    branches = {node: branch for output in outputs for node, branch in output.branches.items()}
    kept = f"* EXCEPT ({', '.join(name for name in existing if name in texts)})"
    after = BranchedFrame(
        step.frame.selectExpr(
            kept if any(name in texts for name in existing) else "*",
            *(f"{text} AS {name}" for name, text in texts.items()),
        ),
        before.names,
        has_coordinates=any(branch.has_coordinates for branch in branches.values())
        or (before.has_coordinates and bool(others)),
        has_markers=before.has_markers,
        has_bad=before.has_bad or has_dead_letters,
        shared=True,
    )
    return after, branches


def _passing_columns(
    branched: BranchedFrame, others: Mapping[int, Collection[str]], place: _Place, *, timed: bool
) -> list[str]:
    """The columns of the rows that pass the exchange; none if no rows pass it.

    Timestamps pass if an output of the exchange carries them: otherwise nothing downstream reads them.
    """
    if not branched.has_bad and not others and not place.passing_numbers:
        return []
    existing = {*branched.frame.columns} - (set() if timed else {TIMESTAMP_MS})
    of_branches = (name for columns in others.values() for name in columns)
    engine = (*_PASSING, *(_CHANNELS if place.later else ()))
    return [*(name for name in engine if name in existing), *dict.fromkeys(of_branches)]


def _seen_rows(passed: pa.Schema, place: _Place) -> SeenRows | None:
    topics = [each.name for each in place.later if not isinstance(each, StatefulOperator)]
    if not topics or NEWEST not in passed.names:
        return None
    values = {BRANCH: int(RowKind.DROPPED), "offset": MAX_TIMESTAMP_MS}
    columns = (SOURCE, "partition", NEWEST)
    return SeenRows(sources=frozenset(topics), schema=passed, values=values, columns=columns)


def _watermark_functions(context: KeyGroupContext) -> dict[str, Callable[[Any], int | None]]:
    return {
        source.name: topic.watermark.generator.function
        for source in context.query.sources
        if (topic := source.topic)
        and topic.watermark
        and isinstance(topic.watermark.generator, PeriodicFunction)
    }


def _input_columns(frame: DataFrame) -> InputColumns:
    def optional(name: str) -> str | None:
        return PREFIX + name if PREFIX + name in frame.columns else None

    return InputColumns(
        source=f"{PREFIX}source",
        partition=f"{PREFIX}partition",
        offset=f"{PREFIX}offset",
        newest=optional("newest_ms"),
        element=optional("element"),
        sender=optional("sender"),
        marker=optional("event"),
        backlog=optional("backlog"),
        passing=optional("passing"),
    )
