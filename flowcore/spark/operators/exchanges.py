"""Run an exchange: rows are shuffled to key groups, where all operators with state of one depth run.

Rows of other branches, bad messages and dead letters pass the exchange as packed batches that are not opened.
The channels of an operator with state downstream of another one are the key groups of the upstream operator,
which emit watermarks and other control elements between their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from flowcore.api import operators as api
from flowcore.api.operators import Operator
from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.keyed.content import StoredSchemas
from flowcore.keyed.exchange import Exchange
from flowcore.keyed.output_columns import RESULTS
from flowcore.keyed.packing import (
    BACKLOG_CHANNELS,
    Packing,
)
from flowcore.keyed.passing import SeenRows
from flowcore.keyed.runtime import Runtime
from flowcore.spark.checkpoint.backlog_status import read_backlog_status
from flowcore.spark.checkpoint.stored_types import add_argument_types
from flowcore.spark.errors import translate_plan_errors
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.rows import (
    BRANCH,
    NEWEST,
    RECORD_ID,
    SOURCE,
    RowKind,
)
from flowcore.spark.operators.buffers import prepare_buffer
from flowcore.spark.operators.dead_letter_columns import dead_letter_columns
from flowcore.spark.operators.deduplication import prepare_deduplication
from flowcore.spark.operators.exchange_input import Place, SelectedRows, passing_columns, select_rows
from flowcore.spark.operators.key_group_context import (
    PREFIX,
    KeyGroupContext,
    begins_channels,
)
from flowcore.spark.operators.key_groups import StepRows, run_key_groups, text_by_branch, unpack_step
from flowcore.spark.operators.keyed_step import KeyedStep, StepMember, select_inputs
from flowcore.spark.operators.packed_outputs import BranchOutput, offer_packed
from flowcore.spark.operators.processes import prepare_keyed_process
from flowcore.spark.operators.ranking import prepare_ranking, prepare_retracting_top_n
from flowcore.spark.operators.retraction import prepare_changelog, prepare_retracting_aggregate
from flowcore.spark.operators.sorting import prepare_sorting
from flowcore.spark.operators.stream_joins import prepare_stream_join
from flowcore.spark.operators.unparsed_input import select_unparsed
from flowcore.spark.operators.windows import prepare_window

__all__ = ["name_exchange", "run_exchange"]

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
    place = Place.find([*nodes], context)
    members = []
    for node, branches in nodes.items():
        with translate_plan_errors(node.name):
            step = _prepare(node, branched, branches, context.of(node))
            member = select_inputs(step, branched)
        results = member.operator.outputs.get(RESULTS, pa.schema([]))
        stored = add_argument_types(node, results, member.records)
        context.schemas[node.name] = StoredSchemas(member.keys, stored)
        members.append(member)
    runtimes = tuple(_runtime(member, place) for member in members)
    exchange = Exchange(query=name_exchange(context.checkpoint, place.depth), runtimes=runtimes)
    names = passing_columns(branched, others, place, timed=timed)
    passed = to_arrow_schema(StructType([branched.frame.schema[name] for name in names]), timezone="UTC")
    selected = select_unparsed(members, branched, others, passed, place) or select_rows(
        members, branched, others, passed, place
    )
    frame = _with_backlog_status(selected.frame, context) if place.depth == 1 else selected.frame
    packing = _packing(
        selected, place, context, later=_seen_rows(passed, place), scattered=branched.scattered
    )
    # Rows that pass are not brought in order before the next exchange.
    branched.scattered = branched.scattered and bool(names)
    rows = unpack_step(
        members, run_key_groups(frame, packing, exchange, context.times),
        names=branched.names, passing=passed if names else None,
        with_backlog=context.side_channels.reads_attributes,
        numbers=[*map(context.sources.index, nodes)] if place.later else None,
    )  # fmt: skip
    if selected.unparsed is not None:
        rows = replace(rows, frame=selected.unparsed.find_reasons(rows.frame))
    outputs, found = _add_columns(members, rows, branched, others, context)
    if not others:
        branched.unparsed = offer_packed(
            outputs, members, rows, passed, place, context, parsed=branched.frame, after=selected.unparsed
        )
    return found


def _packing(
    selected: SelectedRows, place: Place, context: KeyGroupContext, *, later: SeenRows | None, scattered: bool
) -> Packing:
    is_first = place.depth == 1
    return Packing(
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
        reader=selected.reader,
        by_channel=is_first,
        scattered=scattered,
    )


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


def _runtime(member: StepMember, place: Place) -> Runtime:
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
) -> tuple[Sequence[BranchOutput], Mapping[Operator, Branch]]:
    """Put the rows of an exchange, with the columns of its outputs, into its frame.

    Returns:
        The columns of each output, and the branch of each operator whose output it is.
    """
    texts: dict[str, str] = {}
    by_branch: dict[str, dict[int, str]] = {RECORD_ID: {}}
    branches: dict[Operator, Branch] = {}
    described = []
    for place, (member, outputs) in enumerate(zip(members, rows.columns, strict=True)):
        for name, output in member.step.outputs.items():
            found, own = outputs[name], member.step.context
            computed = output.computed(found)
            names = {**found, **{column: next(branched.names) for column in computed}}
            plain = {names[column]: text for column, text in computed.items()}
            texts |= plain
            columns = {column: names[now] for column, now in output.columns.items()}
            engine = output.find_texts(found, own)
            for column, text in engine.items():
                by_branch.setdefault(column, {})[output.number] = text
            described.append(BranchOutput(place, name, output.number, found, {**plain, **engine}))
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
    return described, branches


def _seen_rows(passed: pa.Schema, place: Place) -> SeenRows | None:
    topics = [each.name for each in place.later if begins_channels(each)]
    if not topics or NEWEST not in passed.names:
        return None
    values = {BRANCH: int(RowKind.DROPPED), "offset": MAX_TIMESTAMP_MS}
    columns = (SOURCE, "partition", NEWEST)
    return SeenRows(sources=frozenset(topics), schema=passed, values=values, columns=columns)
