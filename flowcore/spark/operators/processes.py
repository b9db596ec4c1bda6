"""Keyed process functions in a live query: from a branch's records to branches of their outputs.

Functions that read the results of a process run in the same call of a worker; then the outputs of these
functions replace the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from flowcore.api.operators import KeyedProcess, Operator
from flowcore.keyed.dead_letters import DeadLetters
from flowcore.keyed.output_columns import ORDINAL as OUTPUT
from flowcore.keyed.output_columns import RESULTS
from flowcore.planner.model import LiveQuery
from flowcore.process.keyed import KeyedProcesses
from flowcore.process.outputs import KEY, NTH, TIMER, side_output_name
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.rows import RECORD_ORDINAL
from flowcore.spark.frame.sql import literal
from flowcore.spark.operators.chain_specs import (
    ChainOutlet,
    arrow_schema,
    make_downstream_chain,
    spark_types,
)
from flowcore.spark.operators.key_group_context import COORDINATE_PREFIX, RECORD_TIMESTAMP, KeyGroupContext
from flowcore.spark.operators.keyed_step import KeyedStep, StepOutput

__all__ = ["prepare_keyed_process"]


def prepare_keyed_process(
    node: KeyedProcess, _: BranchedFrame, branches: Sequence[Branch], context: KeyGroupContext
) -> KeyedStep:
    """A keyed process function over a branch's records; the outputs of its chain replace its results."""
    (branch,) = branches
    query, label = context.query, context.record_ids.states[node]
    traced = context.reads_topics or branch.has_record_id or branch.has_coordinates
    outputs = {}
    schemas = dict(node.side_outputs)
    for name, nodes in context.side_outputs.items():
        outputs[side_output_name(name)] = _describe_output(
            nodes, schemas[name].names, f"{label}.{name}", context, traced=traced
        )
    downstream = None
    chain = next((each for each in query.chains if each.head is node), None)
    if chain is None:
        outputs[RESULTS] = _describe_output([node], node.schema.names, label, context, traced=traced)
    else:
        downstream, outlets = make_downstream_chain(
            chain, query.used_columns, check=context.settings.object_reuse_check,
            isolate_failures=bool(query.key_group_dead_letters),
        )  # fmt: skip
        outputs |= {
            f"chain {number}": _describe_outlet(outlet, label, context, traced=traced)
            for number, outlet in enumerate(outlets)
        }

    def make(records: pa.Schema, dead_letters: DeadLetters | None) -> KeyedProcesses:
        return KeyedProcesses(
            name=node.name,
            function=node.function,
            keys=node.by,
            values=node.uses,
            timestamp=RECORD_TIMESTAMP,
            rows=records,
            places=tuple(context.coordinates),
            topics=() if context.reads_operators else context.topics,
            results=arrow_schema(spark_types(node.schema)),
            side_outputs={name: arrow_schema(spark_types(schema)) for name, schema in node.side_outputs},
            keyed=node in query.buffers,
            dead_letters=dead_letters,
            downstream=downstream,
            no_timestamps=_no_timestamps(node, query),
        )

    return KeyedStep(
        node=node,
        context=context,
        keys=node.by,
        branch=branch,
        columns={name: branch.physical_names[name.lower()] for name in (*node.by, *node.uses)},
        make=make,
        outputs=outputs,
        shown=(*node.by, *node.uses),
        result_key=[f"{KEY}{name}" for name in node.by],
    )


def _describe_outlet(
    outlet: ChainOutlet, label: str, context: KeyGroupContext, *, traced: bool
) -> StepOutput:
    """The records that leave the chain of a process as a branch."""
    return _describe_output(
        [outlet.node],
        [*outlet.types],
        label,
        context,
        traced=traced and not outlet.batched,
        step=context.record_ids.steps[outlet.node] if outlet.multiplied else None,
    )


def _describe_output(
    nodes: Sequence[Operator],
    names: Sequence[str],
    label: str,
    context: KeyGroupContext,
    *,
    traced: bool,
    step: str | None = None,
) -> StepOutput:
    """An output as a branch.

    Args:
        nodes: The operators whose output it is for their readers.
        names: Its columns.
        label: Begins its `RECORD_ID`.
        traced: The record or timer is known that each of its rows was made from, and has an id or a place.
        step: Distinguishes the outputs made from one result; None if there is at most one.
    """

    def record_id(found: Mapping[str, str]) -> str:
        """The operator, the record or timer that an output was made from, and its position among outputs."""
        origin = [f"coalesce({context.origins(found)})"]
        if context.has_ordinals:
            origin.append(f"nullif({found[COORDINATE_PREFIX + RECORD_ORDINAL]}, '0')")
        origin_or_timer = f"coalesce({found[TIMER]}, concat_ws(':', {', '.join(origin)}))"
        return f"concat_ws(':', {literal(label)}, {origin_or_timer}, {found[OUTPUT]})"

    def ordinal(found: Mapping[str, str]) -> str:
        """The first output keeps its ordinal, so that it does not depend on the number of outputs."""
        further = f"CASE WHEN {found[NTH]} > 0 THEN '.{step}-' || {found[NTH]} ELSE '' END" if step else "''"
        return f"coalesce('0' || {further}, '0')"

    return StepOutput(
        nodes=nodes,
        number=next(context.numbers),
        columns={name: name for name in names},
        record_id=record_id if traced else None,
        ordinal=ordinal,
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
