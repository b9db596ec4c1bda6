"""Keyed process functions in a live query: from a branch's records to branches of their outputs.

Functions that read the results of a process run in the same call of a worker; then the outputs of these
functions replace the results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flowcore.api.operators import KeyedProcess, Operator
from flowcore.api.stateful import find_side_outputs
from flowcore.chains import DownstreamChain
from flowcore.keyed.dead_letters import DEAD_LETTERS, DeadLetters
from flowcore.keyed.output_columns import ORDINAL as OUTPUT
from flowcore.keyed.output_columns import RESULTS, TIMESTAMP
from flowcore.planner.model import Chain
from flowcore.process.keyed import KeyedProcesses
from flowcore.process.outputs import NTH, TIMER, side_output_name
from flowcore.settings import CheckMode
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.rows import INPUT_ID, RECORD_ID, RECORD_ORDINAL, SOURCE, TIMESTAMP_MS, RowKind
from flowcore.spark.frame.sql import literal
from flowcore.spark.operators.buffers import add_buffer, find_buffer
from flowcore.spark.operators.dead_letters import dead_letter_columns, route_dead_letters
from flowcore.spark.operators.keyed_step import (
    COORDINATE_PREFIX,
    RECORD_TIMESTAMP,
    KeyGroupContext,
    StepInputs,
    branch_after,
    run_step,
    select_inputs,
)
from flowcore.spark.operators.python_chain import (
    ChainOutlet,
    arrow_schema,
    make_downstream_chain,
    spark_types,
)
from flowcore.spark.operators.step_rows import StepRows, text_by_branch

__all__ = ["apply_process"]


@dataclass(frozen=True, slots=True)
class _Output:
    """An output that is read.

    Attributes:
        node: The operator whose output it is for its readers.
        output: Its name in the key groups.
        name: The prefix of its `RECORD_ID`.
        columns: Its columns.
        number: Of its branch.
        step: Distinguishes the outputs made from one result; None if there is at most one.
        has_origin: The record or timer is known that each of its rows was made from.
    """

    node: Operator
    output: str
    name: str
    columns: tuple[str, ...]
    number: int
    step: str | None = None
    has_origin: bool = True


def apply_process(  # noqa: PLR0917 - the operator and its input, then its surroundings
    node: KeyedProcess,
    branched: BranchedFrame,
    branch: Branch,
    context: KeyGroupContext,
    chain: Chain | None,
    used: Mapping[Operator, Collection[str]],
    check: CheckMode = "off",
) -> tuple[BranchedFrame, Mapping[Operator, Branch]]:
    """The outputs of a keyed process function by operator: its results, and the side outputs that are read.

    Args:
        node: The operator.
        branched: The frame of the branch.
        branch: The records.
        context: The query.
        chain: The chain that it begins, whose outputs replace its results; None if it begins none.
        used: The output columns of each operator that are used, in lower case.
        check: Which records the reuse check watches in the chain.
    """
    read = {name: branch.physical_names[name.lower()] for name in (*node.by, *node.uses)}
    columns = {**read, **context.coordinates}
    inputs = select_inputs(node, node.by, branched, branch, columns, context)
    dead_letters = route_dead_letters(context, (*node.by, *node.uses))
    has_ids = context.upstream is None or branch.has_record_id or branch.has_coordinates
    outputs = [*_side_outputs(node, context)]
    downstream = None
    if chain is None:
        label = context.record_ids.states[node]
        outputs.append(_Output(node, RESULTS, label, node.schema.names, next(context.numbers)))
    else:
        isolate = dead_letters is not None
        downstream, outlets = make_downstream_chain(chain, used, check=check, isolate_failures=isolate)
        outputs += _chain_outputs(node, outlets, context)
    process = _make_operator(node, inputs, context, dead_letters, downstream)
    operator = add_buffer(node, process, [field.name for field in process.key_fields], context)
    branches = {each.output: each.number for each in outputs}
    if dead_letters is not None:
        branches[DEAD_LETTERS] = RowKind.BAD
    step = run_step(inputs, operator, branches, context)
    texts = step.replace(_row_columns(outputs, step, context))
    if dead_letters is not None:
        texts |= dead_letter_columns(step.columns[DEAD_LETTERS], context, texts, step.frame.columns)
    has_bad = branched.has_bad or dead_letters is not None
    has_coordinates = branched.has_coordinates and bool(context.passing)
    after = branch_after(step, inputs, texts, has_coordinates=has_coordinates, has_bad=has_bad)
    return after, {
        each.node: Branch(
            each.number,
            {name: step.columns[each.output][name] for name in each.columns},
            has_coordinates=False,
            has_record_id=each.has_origin and has_ids,
        )
        for each in outputs
    }


def _side_outputs(node: KeyedProcess, context: KeyGroupContext) -> Iterator[_Output]:
    schemas = dict(node.side_outputs)
    for each in find_side_outputs(node, context.query.operators):
        name = each.output
        names = schemas[name].names
        label = f"{context.record_ids.states[node]}.{name}"
        yield _Output(each, side_output_name(name), label, names, next(context.numbers))


def _chain_outputs(
    node: KeyedProcess, outlets: Sequence[ChainOutlet], context: KeyGroupContext
) -> Iterator[_Output]:
    for number, outlet in enumerate(outlets):
        yield _Output(
            outlet.node,
            f"chain {number}",
            context.record_ids.states[node],
            (*outlet.types,),
            next(context.numbers),
            step=context.record_ids.steps[outlet.node] if outlet.multiplied else None,
            has_origin=not outlet.batched,
        )


def _make_operator(
    node: KeyedProcess,
    inputs: StepInputs,
    context: KeyGroupContext,
    dead_letters: DeadLetters | None,
    downstream: DownstreamChain | None,
) -> KeyedProcesses:
    from_topics = context.upstream is None
    topics = ((source.topic, source.name) for source in context.query.sources)
    return KeyedProcesses(
        name=node.name,
        function=node.function,
        keys=node.by,
        values=node.uses,
        timestamp=RECORD_TIMESTAMP,
        rows=inputs.records,
        places=tuple(context.coordinates),
        topics=tuple(topic.name if topic else name for topic, name in topics) if from_topics else (),
        results=arrow_schema(spark_types(node.schema)),
        side_outputs={name: arrow_schema(spark_types(schema)) for name, schema in node.side_outputs},
        keyed=find_buffer(node, context.query) is not None,
        dead_letters=dead_letters,
        downstream=downstream,
    )


def _row_columns(outputs: Sequence[_Output], step: StepRows, context: KeyGroupContext) -> dict[str, str]:
    """SQL texts of record id, timestamp and ordinal of the outputs' rows."""
    found = {each.number: step.columns[each.output] for each in outputs}
    ids = {
        each.number: _record_id(each.name, found[each.number], context) for each in outputs if each.has_origin
    }
    timed = {
        each.number: found[each.number][TIMESTAMP]
        for each in outputs
        if context.query.carries_timestamps(each.node)
    }
    texts = {RECORD_ID: text_by_branch(ids)}
    texts |= {TIMESTAMP_MS: text_by_branch(timed)} if timed else {}
    if context.has_ordinals:
        ordinals = {}
        for each in outputs:
            if each.step is not None:
                # The first output keeps its ordinal, so that it does not depend on the number of outputs.
                nth = found[each.number][NTH]
                suffix = f"CASE WHEN {nth} > 0 THEN '.{each.step}-' || {nth} ELSE '' END"
                ordinals[each.number] = f"'0' || {suffix}"
        texts[RECORD_ORDINAL] = f"coalesce({text_by_branch(ordinals)}, '0')"
    return texts


def _record_id(name: str, found: Mapping[str, str], context: KeyGroupContext) -> str:
    """The operator, the record or timer that an output was made from, and its position among the outputs."""
    if context.upstream is None:
        topic = f"CASE {found[COORDINATE_PREFIX + SOURCE]} {context.topic_cases} END"
        partition, offset = found[f"{COORDINATE_PREFIX}partition"], found[f"{COORDINATE_PREFIX}offset"]
        origin = [context.record_ids.place(topic, partition, offset)]
    else:
        origin = [found[COORDINATE_PREFIX + INPUT_ID]]
    if context.has_ordinals:
        origin.append(f"nullif({found[COORDINATE_PREFIX + RECORD_ORDINAL]}, '0')")
    record = f"concat_ws(':', {', '.join(origin)})"
    return f"concat_ws(':', {literal(name)}, coalesce({found[TIMER]}, {record}), {found[OUTPUT]})"
