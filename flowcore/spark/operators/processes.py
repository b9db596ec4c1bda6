"""Keyed process functions in a live query: from a branch's records to branches of what they put out.

Functions that read their results run in the same call of a worker; then what these put out comes instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from flowcore.api.operators import KeyedProcess, Operator, SideOutput
from flowcore.keyed.dead_letters import DEAD_LETTERS
from flowcore.keyed.output_columns import ORDINAL as OUTPUT
from flowcore.keyed.output_columns import RESULTS, TIMESTAMP
from flowcore.planner.model import Chain
from flowcore.process.keyed import KeyedProcesses
from flowcore.process.outputs import NTH, TIMER, side_output_name
from flowcore.settings import CheckMode
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.rows import BRANCH, RECORD_ID, RECORD_ORDINAL, SOURCE, TIMESTAMP_MS, RowKind
from flowcore.spark.frame.sql import literal
from flowcore.spark.operators.buffers import buffer_of, buffered
from flowcore.spark.operators.by_key import (
    OF,
    STAMP,
    ByKey,
    coordinates,
    given,
    packed,
    put_out,
    records_of,
    topic_case,
    with_columns,
)
from flowcore.spark.operators.dead_letters import letter_columns, letters_for
from flowcore.spark.operators.python_chain import arrow_schema, behind, types_of

__all__ = ["processed"]


@dataclass(frozen=True, slots=True)
class _Out:
    """One output that goes on.

    Attributes:
        node: Whose output it is to its readers.
        output: What it is called in the key groups.
        name: In front of the identities of its rows.
        columns: Of its rows.
        step: Tells apart what became of one result, None where that is one at most.
        told: It is known of which record each was made.
    """

    node: Operator
    output: str
    name: str
    columns: tuple[str, ...]
    step: str | None = None
    told: bool = True


def processed(  # noqa: PLR0917 - what it is about, then how
    node: KeyedProcess,
    branched: BranchedFrame,
    branch: Branch,
    of: ByKey,
    chain: Chain | None,
    used: Mapping[Operator, Collection[str]],
    check: CheckMode = "off",
) -> tuple[BranchedFrame, Mapping[Operator, Branch]]:
    """What a keyed process function puts out, by operator: its results, and the side outputs that are read.

    Args:
        node: The operator.
        branched: Rows, the branch's among them.
        branch: The records.
        of: The query.
        chain: The chain that it begins, whose outputs come instead of its results; None if it begins none.
        used: The output columns of each operator that are used, in lower case.
        check: Whether functions of the chain are watched.
    """
    places = coordinates(of)
    read = {name: branch.physical_names[name.lower()] for name in (*node.by, *node.uses)}
    columns = {**read, **places}
    frame = given(node.by, branched, branch, columns, of)
    rows = records_of(frame, columns)
    letters = letters_for(of, (*node.by, *node.uses))
    outs = [*_sides(node, of)]
    following = None
    if chain is None:
        outs.append(_Out(node, RESULTS, node.name, node.schema.names))
    else:
        following, outlets = behind(chain, used, check=check, lenient=letters is not None)
        for number, outlet in enumerate(outlets):
            step = next(branched.names) if outlet.multiplied else None
            told = not outlet.batched
            outs.append(_Out(outlet.node, f"chain {number}", node.name, (*outlet.types,), step, told))
    function = KeyedProcesses(
        name=node.name,
        function=node.function,
        keys=node.by,
        values=node.uses,
        timestamp=STAMP,
        rows=rows,
        places=tuple(places),
        topics=tuple(topic.name if (topic := each.topic) else each.name for each in of.query.sources),
        results=arrow_schema(types_of(node.schema)),
        side_outputs={name: arrow_schema(types_of(schema)) for name, schema in node.side_outputs},
        keyed=buffer_of(node, of) is not None,
        dead_letters=letters,
        downstream=following,
    )
    operator = buffered(node, function, [field.name for field in function.key_fields], of)
    branches = {
        each.node: Branch(next(of.numbers), {}, has_coordinates=False, has_record_id=each.told)
        for each in outs
    }
    outputs = {each.output: (branches[each.node].number, operator.outputs[each.output]) for each in outs}
    if letters is not None:
        outputs[DEAD_LETTERS] = (RowKind.BAD, operator.outputs[DEAD_LETTERS])
    stepped = put_out(node, packed(node, frame, operator, rows, of), outputs, branched)

    found = stepped.physical
    beside = {
        RECORD_ID: _by_branch(
            {
                branches[each.node].number: _identity(each.name, found[each.output], of)
                for each in outs
                if each.told
            }
        ),
        TIMESTAMP_MS: _by_branch(
            {branches[each.node].number: found[each.output][TIMESTAMP] for each in outs}
        ),
    }
    if of.has_ordinals:
        told_apart = {
            branches[each.node].number: _nth(found[each.output][NTH], each.step)
            for each in outs
            if each.step is not None
        }
        beside[RECORD_ORDINAL] = f"coalesce({_by_branch(told_apart)}, '0')"
    if letters is not None:
        beside |= letter_columns(found[DEAD_LETTERS], of, beside, stepped.frame.columns)
    after = BranchedFrame(
        with_columns(stepped.frame, beside),
        branched.names,
        has_coordinates=False,
        has_markers=branched.has_markers,
        has_bad=branched.has_bad or letters is not None,
    )
    after.shared = True
    return after, {
        each.node: Branch(
            branches[each.node].number,
            {name: found[each.output][name] for name in each.columns},
            has_coordinates=False,
            has_record_id=each.told,
        )
        for each in outs
    }


def _sides(node: KeyedProcess, of: ByKey) -> Iterator[_Out]:
    schemas = dict(node.side_outputs)
    for each in of.query.operators:
        if isinstance(each, SideOutput) and node in each.inputs:
            name = each.output
            yield _Out(each, side_output_name(name), f"{node.name}.{name}", schemas[name].names)


def _identity(name: str, found: Mapping[str, str], of: ByKey) -> str:
    """Of an output: its operator, the record or timer that it was made of, and which of its outputs it is."""
    where = [topic_case(found[OF + SOURCE], of), found[OF + "partition"], found[OF + "offset"]]
    if of.has_ordinals:
        where.append(found[OF + RECORD_ORDINAL])
    origin = f"coalesce({found[TIMER]}, concat_ws(':', {', '.join(where)}))"
    return f"concat_ws(':', {literal(name)}, {origin}, {found[OUTPUT]})"


def _nth(number: str, step: str | None) -> str:
    """The first keeps its ordinal, so that it does not depend on there being others."""
    return f"'0' || CASE WHEN {number} > 0 THEN '.{step}-' || {number} ELSE '' END"


def _by_branch(texts: Mapping[int, str]) -> str:
    if not texts:
        return "CAST(NULL AS STRING)"
    cases = (f"WHEN {number} THEN {text}" for number, text in texts.items())
    return f"CASE {BRANCH} {' '.join(cases)} END"
