"""Keyed process functions in a live query: from a lane's records to lanes of what they put out.

Functions that read their results run in the same call of a worker; then what these put out comes instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from flowcore.api.operators import KeyedProcess, Operator, SideOutput, topic_of
from flowcore.chains import CheckMode
from flowcore.keyed.dead_letters import LETTERS
from flowcore.keyed.output_columns import ORDINAL as OUTPUT
from flowcore.keyed.output_columns import RESULTS, TIMESTAMP
from flowcore.planner.plan import Chain
from flowcore.process.keyed import KeyedProcesses
from flowcore.process.outputs import NTH, TIMER, side
from flowcore.spark.frame.branches import BAD, IDENTITY, LANE, ORDINAL, SOURCE, TIME, Lane, Tracks
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
    tracks: Tracks,
    lane: Lane,
    of: ByKey,
    chain: Chain | None,
    used: Mapping[Operator, Collection[str]],
    check: CheckMode = "off",
) -> tuple[Tracks, Mapping[Operator, Lane]]:
    """What a keyed process function puts out, by operator: its results, and the side outputs that are read.

    Args:
        node: The operator.
        tracks: Rows, the lane's among them.
        lane: The records.
        of: The query.
        chain: The chain that it begins, whose outputs come instead of its results; None if it begins none.
        used: The output columns of each operator that are used, in lower case.
        check: Whether functions of the chain are watched.
    """
    places = coordinates(of)
    read = {name: lane.lower[name.lower()] for name in (*node.by, *node.uses)}
    columns = {**read, **places}
    frame = given(node.by, tracks, lane, columns, of)
    rows = records_of(frame, columns)
    letters = letters_for(of, (*node.by, *node.uses))
    outs = [*_sides(node, of)]
    following = None
    if chain is None:
        outs.append(_Out(node, RESULTS, node.name, node.schema.names))
    else:
        following, outlets = behind(chain, used, check=check, lenient=letters is not None)
        for number, outlet in enumerate(outlets):
            step = next(tracks.names) if outlet.multiplied else None
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
        topics=tuple(topic.name if (topic := topic_of(each)) else each.name for each in of.query.sources),
        results=arrow_schema(types_of(node.schema)),
        side_outputs={name: arrow_schema(types_of(schema)) for name, schema in node.side_outputs},
        keyed=buffer_of(node, of) is not None,
        letters=letters,
        behind=following,
    )
    operator = buffered(node, function, [field.name for field in function.key_fields], of)
    lanes = {each.node: Lane(next(of.numbers), {}, identified=False, named=each.told) for each in outs}
    outputs = {each.output: (lanes[each.node].number, operator.outputs[each.output]) for each in outs}
    if letters is not None:
        outputs[LETTERS] = (BAD, operator.outputs[LETTERS])
    stepped = put_out(node, packed(node, frame, operator, rows, of), outputs, tracks)

    found = stepped.physical
    beside = {
        IDENTITY: _by_lane(
            {
                lanes[each.node].number: _identity(each.name, found[each.output], of)
                for each in outs
                if each.told
            }
        ),
        TIME: _by_lane({lanes[each.node].number: found[each.output][TIMESTAMP] for each in outs}),
    }
    if of.counted:
        told_apart = {
            lanes[each.node].number: _nth(found[each.output][NTH], each.step)
            for each in outs
            if each.step is not None
        }
        beside[ORDINAL] = f"coalesce({_by_lane(told_apart)}, '0')"
    if letters is not None:
        beside |= letter_columns(found[LETTERS], of, beside, stepped.frame.columns)
    after = Tracks(
        with_columns(stepped.frame, beside),
        tracks.names,
        identified=False,
        marked=tracks.marked,
        bad=tracks.bad or letters is not None,
    )
    after.shared = True
    return after, {
        each.node: Lane(
            lanes[each.node].number,
            {name: found[each.output][name] for name in each.columns},
            identified=False,
            named=each.told,
        )
        for each in outs
    }


def _sides(node: KeyedProcess, of: ByKey) -> Iterator[_Out]:
    schemas = dict(node.side_outputs)
    for each in of.query.operators:
        if isinstance(each, SideOutput) and node in each.inputs:
            name = each.output
            yield _Out(each, side(name), f"{node.name}.{name}", schemas[name].names)


def _identity(name: str, found: Mapping[str, str], of: ByKey) -> str:
    """Of an output: its operator, the record or timer that it was made of, and which of its outputs it is."""
    where = [topic_case(found[OF + SOURCE], of), found[OF + "partition"], found[OF + "offset"]]
    if of.counted:
        where.append(found[OF + ORDINAL])
    origin = f"coalesce({found[TIMER]}, concat_ws(':', {', '.join(where)}))"
    return f"concat_ws(':', {literal(name)}, {origin}, {found[OUTPUT]})"


def _nth(number: str, step: str | None) -> str:
    """The first keeps its ordinal, so that it does not depend on there being others."""
    return f"'0' || CASE WHEN {number} > 0 THEN '.{step}-' || {number} ELSE '' END"


def _by_lane(texts: Mapping[int, str]) -> str:
    if not texts:
        return "CAST(NULL AS STRING)"
    cases = (f"WHEN {number} THEN {text}" for number, text in texts.items())
    return f"CASE {LANE} {' '.join(cases)} END"
