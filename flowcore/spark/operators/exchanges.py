"""Run an exchange: rows are shuffled to key groups, where all operators with state of one depth run.

Rows of other branches, bad messages and dead letters pass the exchange as packed batches that are not opened.
The channels of an operator with state downstream of another one are the key groups of the upstream operator,
which emit watermarks and other control elements between their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from flowcore.api import operators as api
from flowcore.api.operators import Operator, WithEventTime
from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.keyed.content import StoredSchemas
from flowcore.keyed.exchange import Exchange
from flowcore.keyed.output_columns import RESULTS
from flowcore.keyed.packing import (
    BACKLOG_CHANNELS,
    PARTITION_BITS,
    InputColumns,
    Packing,
    Recipient,
)
from flowcore.keyed.passing import PassingRows, SeenRows
from flowcore.keyed.runtime import Runtime
from flowcore.spark.checkpoint.backlog_status import read_backlog_status
from flowcore.spark.errors import translate_plan_errors
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.rows import (
    BACKLOG,
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
from flowcore.spark.frame.sql import json_object, quote
from flowcore.spark.operators.buffers import prepare_buffer
from flowcore.spark.operators.dead_letter_columns import dead_letter_columns
from flowcore.spark.operators.deduplication import prepare_deduplication
from flowcore.spark.operators.key_group_context import (
    PREFIX,
    KeyGroupContext,
    begins_channels,
)
from flowcore.spark.operators.key_groups import StepRows, run_key_groups, text_by_branch, unpack_step
from flowcore.spark.operators.keyed_step import KeyedStep, StepMember, select_inputs
from flowcore.spark.operators.processes import prepare_keyed_process
from flowcore.spark.operators.ranking import prepare_ranking, prepare_retracting_top_n
from flowcore.spark.operators.retraction import prepare_changelog, prepare_retracting_aggregate
from flowcore.spark.operators.sorting import prepare_sorting
from flowcore.spark.operators.stream_joins import prepare_stream_join
from flowcore.spark.operators.windows import prepare_window

__all__ = ["name_exchange", "run_exchange"]

_PASSING = (
    BRANCH, "topic", "partition", "offset", RECORD_ID, RECORD_ORDINAL, TIMESTAMP_MS, BAD_REASON, VALUE,
    KAFKA_MS, FAILED_OPERATOR, BACKLOG,
)  # fmt: skip
"""The columns of rows that pass key groups, besides those of their branches."""
_CHANNELS = (SOURCE, NEWEST, ELEMENT, CHANNEL, KEY_GROUP, POSITION)
"""The same, if there is another exchange downstream."""
_PREPARED: Sequence[tuple[type[Operator], Callable[..., KeyedStep]]] = (
    (api.StreamJoin, prepare_stream_join),
    (api.Window, prepare_window),
    (api.Deduplicate, prepare_deduplication),
    (api.EventTimeSort, prepare_sorting),
    (api.RetractingTopN, prepare_retracting_top_n),
    (api.Ranked, prepare_ranking),
    (api.ChangelogNormalize, prepare_changelog),
    (api.RetractingAggregate, prepare_retracting_aggregate),
    (api.KeyedProcess, prepare_keyed_process),
)


def run_exchange(
    nodes: Mapping[Operator, Sequence[Branch]],
    branched: BranchedFrame,
    others: Mapping[int, Collection[str]],
    context: KeyGroupContext,
    *,
    timed: bool,
) -> Mapping[Operator, Branch]:
    """Run operators of one depth on their key groups; latency markers and rows of other branches pass them.

    Args:
        nodes: The operators, with the branches that they read.
        others: The columns of the other branches of the frame, by number of the branch.
        timed: Records of an output, or of another branch, keep their timestamps.

    Returns:
        The branch of each output; the frame has their rows, and those that passed.
    """
    place = _Place.find([*nodes], context)
    members = []
    for node, branches in nodes.items():
        with translate_plan_errors(node.name):
            step = _prepare(node, branched, branches, context.of(node))
            member = select_inputs(step, branched)
        results = member.operator.outputs.get(RESULTS, pa.schema([]))
        context.schemas[node.name] = StoredSchemas(member.keys, results)
        members.append(member)
    runtimes = tuple(_runtime(member, place) for member in members)
    exchange = Exchange(query=name_exchange(context.checkpoint, place.depth), runtimes=runtimes)
    passing = _passing_columns(branched, others, place, timed=timed)
    passed = to_arrow_schema(StructType([branched.frame.schema[name] for name in passing]), timezone="UTC")
    later = _seen_rows(passed, place)
    selected = _select(members, branched, others, passed, place)
    is_first = place.depth == 1
    frame = _with_backlog_status(selected.frame, context) if is_first else selected.frame
    packing = Packing(
        inputs=selected.columns,
        sources=tuple(each.name for each in context.sources),
        key_groups=context.query.key_groups,
        recipients=selected.recipients,
        upstream=frozenset(each.name for each in place.upstream),
        later=later,
        passing=selected.passing,
        derived=context.derived,
        functions=context.functions if is_first else {},
        senders=context.sender_files,
        by_channel=is_first,
        scattered=branched.scattered,
    )
    # Rows that pass are not brought in order before the next exchange.
    branched.scattered = branched.scattered and bool(passing)
    rows = unpack_step(
        members, run_key_groups(frame, packing, exchange),
        names=branched.names, passing=passed if passing else None,
        with_backlog=context.side_channels.reads_attributes,
        numbers=[*map(context.sources.index, nodes)] if place.later else None,
    )  # fmt: skip
    return _add_columns(members, rows, branched, others, context)


def _with_backlog_status(frame: DataFrame, context: KeyGroupContext) -> DataFrame:
    """The rows of the first exchange, with those of the query's own backlog status."""
    # A task for each partition costs 25 ms.
    tasks = max(context.query.key_groups, frame.sparkSession.sparkContext.defaultParallelism)
    backlog = read_backlog_status(frame.sparkSession, Path(context.checkpoint))
    cases = " ".join(f"WHEN {status} THEN {number}L" for number, status in BACKLOG_CHANNELS.items())
    backlog = backlog.selectExpr(f"CASE backlog {cases} END AS {PREFIX}channel", f"at AS {PREFIX}offset")
    return frame.coalesce(tasks).unionByName(backlog, allowMissingColumns=True)


def name_exchange(checkpoint: str, depth: int) -> str:
    """The name of an exchange, which is that of the pool of its Python workers, too."""
    return f"{checkpoint}/{depth}"


def _prepare(
    node: Operator, branched: BranchedFrame, branches: Sequence[Branch], context: KeyGroupContext
) -> KeyedStep:
    prepare = next((each for kind, each in _PREPARED if isinstance(node, kind)), prepare_buffer)
    return prepare(node, branched, branches, context)


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
    def find(cls, nodes: Sequence[Operator], context: KeyGroupContext) -> _Place:
        exchanges = context.query.exchanges
        depth = next(number for number, each in enumerate(exchanges, 1) if nodes[0] in each)
        before = [node for exchange in exchanges[: depth - 1] for node in exchange]
        after = [node for exchange in exchanges[depth:] for node in exchange]
        later = frozenset(each for node in after for each in context.query.find_senders(node))
        return cls(depth, before, later, context.sources)

    @property
    def is_by_timestamp(self) -> bool:
        """Whether a record's timestamp is the time that counts for watermarks, if any counts."""
        strategies = [each.watermark for each in self.sources if begins_channels(each)]
        return self.depth == 1 and all(each is not None and each.by_timestamp for each in strategies)

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
class _Selected:
    """Rows with what packing needs.

    Attributes:
        columns: The names of their columns other than those of records.
        passing: Which rows pass the exchange; None if no rows do.
    """

    frame: DataFrame
    columns: InputColumns
    recipients: tuple[Recipient, ...]
    passing: PassingRows | None


def _select(
    members: Sequence[StepMember],
    branched: BranchedFrame,
    others: Mapping[int, Collection[str]],
    passed: pa.Schema,
    place: _Place,
) -> _Selected:
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

    newest = None
    if NEWEST in existing:
        newest = share(TIMESTAMP_MS if place.is_by_timestamp and TIMESTAMP_MS in existing else NEWEST)
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
    return _Selected(frame, inputs, recipients, passing)


def _passing_condition(branched: BranchedFrame, others: Collection[int], place: _Place) -> str:
    """SQL text that is true for the rows that pass the exchange; empty if no rows do."""
    numbers = [*([RowKind.BAD] if branched.has_bad else []), *others]
    conditions = [f"{BRANCH} IN ({', '.join(map(str, numbers))})"] if numbers else []
    if place.passing_numbers and ELEMENT in branched.frame.columns:
        controls = f"{SOURCE} IN ({', '.join(map(str, place.passing_numbers))})"
        conditions.append(f"{BRANCH} = {RowKind.CONTROL} AND {controls}")
    return " OR ".join(conditions)


def _runtime(member: StepMember, place: _Place) -> Runtime:
    node, context = member.step.node, member.step.context
    # All input of a slice is backlog until it is read, whatever record attributes say.
    is_slice = context.query.mode.value == "slice"
    ignored = frozenset(each.name for each in context.senders if is_slice and begins_channels(each))
    return Runtime(
        operator=member.operator,
        query=f"{context.checkpoint}/{node.name}",
        key_groups=context.query.key_groups,
        sources=context.watermark_sources(),
        rows=member.packed,
        records=member.records,
        name=node.name,
        emits_control=node in place.later,
        emits_attributes=context.side_channels.reads_attributes,
        reads_control=context.reads_operators,
        ignored_backlog=ignored,
        max_cache_bytes=context.settings.max_cache_bytes,
    )


def _add_columns(
    members: Sequence[StepMember],
    rows: StepRows,
    branched: BranchedFrame,
    others: Mapping[int, Collection[str]],
    context: KeyGroupContext,
) -> Mapping[Operator, Branch]:
    """Put the rows of an exchange, with the columns of its outputs, into its frame."""
    texts: dict[str, str] = {}
    by_branch: dict[str, dict[int, str]] = {RECORD_ID: {}}
    branches: dict[Operator, Branch] = {}
    for member, outputs in zip(members, rows.columns, strict=True):
        for name, output in member.step.outputs.items():
            found, own = outputs[name], member.step.context
            computed = output.computed(found)
            names = {**found, **{column: next(branched.names) for column in computed}}
            texts |= {names[column]: text for column, text in computed.items()}
            columns = {column: names[now] for column, now in output.columns.items()}
            engine = output.find_texts(found, own)
            for column, text in engine.items():
                by_branch.setdefault(column, {})[output.number] = text
            upstream = output.passed
            branch = Branch(
                output.number,
                columns,
                has_coordinates=upstream is not None and not own.reads_operators,
                has_record_id=RECORD_ID in engine
                and (upstream is None or upstream.has_record_id or upstream.has_coordinates),
            )
            branches |= dict.fromkeys(output.nodes, branch)
    existing = rows.frame.columns
    texts |= {
        name: text_by_branch(cases, name if name in existing else None) for name, cases in by_branch.items()
    }
    has_dead_letters = any(each.dead_letters for each in members)
    if has_dead_letters:
        texts |= dead_letter_columns(rows.dead_letters, context, texts, existing)
    kept = f"* EXCEPT ({', '.join(name for name in existing if name in texts)})"
    branched.frame = rows.frame.selectExpr(
        kept if any(name in texts for name in existing) else "*",
        *(f"{text} AS {name}" for name, text in texts.items()),
    )
    branched.has_coordinates = any(branch.has_coordinates for branch in branches.values()) or (
        branched.has_coordinates and bool(others)
    )
    branched.has_bad = branched.has_bad or has_dead_letters
    branched.keeps_dropped = False
    branched.shared = True
    return branches


def _passing_columns(
    branched: BranchedFrame, others: Mapping[int, Collection[str]], place: _Place, *, timed: bool
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


def _seen_rows(passed: pa.Schema, place: _Place) -> SeenRows | None:
    topics = [each.name for each in place.later if begins_channels(each)]
    if not topics or NEWEST not in passed.names:
        return None
    values = {BRANCH: int(RowKind.DROPPED), "offset": MAX_TIMESTAMP_MS}
    columns = (SOURCE, "partition", NEWEST)
    return SeenRows(sources=frozenset(topics), schema=passed, values=values, columns=columns)
