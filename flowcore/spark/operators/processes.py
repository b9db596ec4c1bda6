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
from flowcore.planner.model import Chain, LiveQuery
from flowcore.process.keyed import KeyedProcesses
from flowcore.process.outputs import NTH, TIMER, side_output_name
from flowcore.settings import CheckMode
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.rows import INPUT_ID, RECORD_ID, RECORD_ORDINAL, SOURCE, TIMESTAMP_MS, RowKind
from flowcore.spark.frame.sql import literal
from flowcore.spark.operators.buffers import add_buffer, find_buffer
from flowcore.spark.operators.dead_letters import route_dead_letters
from flowcore.spark.operators.keyed_step import (
    COORDINATE_PREFIX,
    RECORD_TIMESTAMP,
    KeyGroupContext,
    StepInputs,
    StepMember,
    StepOutput,
    select_inputs,
)
from flowcore.spark.operators.python_chain import (
    ChainOutlet,
    arrow_schema,
    make_downstream_chain,
    spark_types,
)

__all__ = ["prepare_keyed_process"]


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


def prepare_keyed_process(  # noqa: PLR0917 - the operator and its input, then its surroundings
    node: KeyedProcess,
    branched: BranchedFrame,
    branch: Branch,
    context: KeyGroupContext,
    chain: Chain | None,
    used: Mapping[Operator, Collection[str]],
    check: CheckMode = "off",
) -> StepMember:
    """A keyed process function over a branch's records, for its exchange.

    Args:
        node: The operator.
        branched: The frame of the branch.
        branch: The records.
        context: The context of the operator.
        chain: The chain that it begins, whose outputs replace its results; None if it begins none.
        used: The output columns of each operator that are used, in lower case.
        check: Which records the reuse check watches in the chain.
    """
    read = {name: branch.physical_names[name.lower()] for name in (*node.by, *node.uses)}
    inputs = select_inputs(node, node.by, branched, branch, read, context, with_coordinates=True)
    dead_letters = route_dead_letters(context, (*node.by, *node.uses))
    has_ids = context.reads_topics or branch.has_record_id or branch.has_coordinates
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
    branches |= {DEAD_LETTERS: RowKind.BAD} if dead_letters is not None else {}

    def finish(found: Mapping[str, Mapping[str, str]]) -> StepOutput:
        leaving = {
            each.node: Branch(
                each.number,
                {name: found[each.output][name] for name in each.columns},
                has_coordinates=False,
                has_record_id=each.has_origin and has_ids,
            )
            for each in outputs
        }
        return StepOutput(leaving, by_branch=_row_columns(outputs, found, context))

    return StepMember(inputs, operator, branches, finish)


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
    from_topics = not context.reads_operators
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
        no_timestamps=_no_timestamps(node, context.query),
    )


def _no_timestamps(node: KeyedProcess, query: LiveQuery) -> str | None:
    """The error for a function that asks for timestamps on a value-only edge."""
    elements = next(edge.elements for edge in query.edges if edge.receiver is node)
    if elements.value == "tagged":
        return None
    return (
        f"operator {node.name!r} asks for the timestamp of a value-only record, which has none "
        f"({', '.join(elements.reasons)}): every record would fail; set a watermark strategy on the source, "
        "for instance watermark=monotonous()"
    )


def _row_columns(
    outputs: Sequence[_Output], found: Mapping[str, Mapping[str, str]], context: KeyGroupContext
) -> dict[str, dict[int, str]]:
    """SQL texts of record id, timestamp and ordinal of the outputs' rows, by branch."""
    texts: dict[str, dict[int, str]] = {RECORD_ID: {}}
    for each in outputs:
        columns = found[each.output]
        if context.query.carries_timestamps(each.node):
            texts.setdefault(TIMESTAMP_MS, {})[each.number] = columns[TIMESTAMP]
        if each.has_origin:
            texts[RECORD_ID][each.number] = _record_id(each.name, columns, context)
        if context.has_ordinals:
            ordinal = "'0'"
            if each.step is not None:
                # The first output keeps its ordinal, so that it does not depend on the number of outputs.
                ordinal += (
                    f" || CASE WHEN {columns[NTH]} > 0 THEN '.{each.step}-' || {columns[NTH]} ELSE '' END"
                )
            texts.setdefault(RECORD_ORDINAL, {})[each.number] = f"coalesce({ordinal}, '0')"
    return texts


def _record_id(name: str, found: Mapping[str, str], context: KeyGroupContext) -> str:
    """The operator, the record or timer that an output was made from, and its position among the outputs."""
    origin = []
    if context.reads_topics:
        topic = f"CASE {found[COORDINATE_PREFIX + SOURCE]} {context.topic_cases} END"
        partition, offset = found[f"{COORDINATE_PREFIX}partition"], found[f"{COORDINATE_PREFIX}offset"]
        origin.append(context.record_ids.place(topic, partition, offset))
    if context.reads_operators:
        origin.append(found[COORDINATE_PREFIX + INPUT_ID])
    if context.has_ordinals:
        origin.append(f"nullif({found[COORDINATE_PREFIX + RECORD_ORDINAL]}, '0')")
    record = f"concat_ws(':', {', '.join(origin)})"
    return f"concat_ws(':', {literal(name)}, coalesce({found[TIMER]}, {record}), {found[OUTPUT]})"
