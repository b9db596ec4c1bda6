"""Keyed process functions in a live query: from a lane's records to lanes of what they put out."""

from __future__ import annotations

from collections.abc import Mapping

from flowcore.graph.operators import KeyedProcess, SideOutput, topic_of
from flowcore.keygroups.emission import RESULTS, TIMESTAMP
from flowcore.keygroups.processes import TIMER, KeyedProcesses, side
from flowcore.keygroups.records import ORDINAL as OUTPUT
from flowcore.spark.buffers import buffer_of, buffered
from flowcore.spark.by_key import (
    OF,
    STAMP,
    ByKey,
    coordinates,
    given,
    packed,
    put_out,
    records_of,
    topic_case,
)
from flowcore.spark.lanes import IDENTITY, LANE, ORDINAL, SOURCE, TIME, Lane, Tracks
from flowcore.spark.python_chain import arrow_schema, types_of
from flowcore.spark.sql import literal

__all__ = ["processed"]


def processed(node: KeyedProcess, tracks: Tracks, lane: Lane, of: ByKey) -> tuple[Tracks, Mapping[str, Lane]]:
    """What a keyed process function puts out: its results, and by name the side outputs that are read.

    Args:
        node: The operator.
        tracks: Rows, the lane's among them.
        lane: The records.
        of: The query.
    """
    places = coordinates(of)
    read = {name: lane.lower[name.lower()] for name in (*node.by, *node.uses)}
    columns = {**read, **places}
    frame = given(node.by, tracks, lane, columns, of)
    rows = records_of(frame, columns)
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
    )
    operator = buffered(node, function, [field.name for field in function.key_fields], of)
    sides = [
        each.output for each in of.query.operators if isinstance(each, SideOutput) and node in each.inputs
    ]
    names = {RESULTS: node.name, **{side(name): f"{node.name}.{name}" for name in sides}}
    lanes = {output: Lane(next(of.numbers), {}, identified=False, named=True) for output in names}
    outputs = {output: (each.number, operator.outputs[output]) for output, each in lanes.items()}
    stepped = put_out(node, packed(node, frame, operator, rows, of), outputs, tracks)

    found = stepped.physical
    beside = {
        IDENTITY: _of_lane(lanes, {output: _identity(names[output], found[output], of) for output in lanes}),
        TIME: _of_lane(lanes, {output: found[output][TIMESTAMP] for output in lanes}),
    }
    if of.counted:
        beside[ORDINAL] = "'0'"
    frame = stepped.frame.selectExpr("*", *(f"{text} AS {name}" for name, text in beside.items()))
    after = Tracks(frame, tracks.names, identified=False, bad=tracks.bad, marked=tracks.marked)
    after.shared = True
    own = {RESULTS: node.schema, **{side(name): schema for name, schema in node.side_outputs}}
    made = {
        output: Lane(
            each.number,
            {name: found[output][name] for name in own[output].names},
            identified=False,
            named=True,
        )
        for output, each in lanes.items()
    }
    return after, {RESULTS: made[RESULTS], **{name: made[side(name)] for name in sides}}


def _identity(name: str, found: Mapping[str, str], of: ByKey) -> str:
    """Of an output: its operator, the record or timer that it was made of, and which of its outputs it is."""
    where = [topic_case(found[OF + SOURCE], of), found[OF + "partition"], found[OF + "offset"]]
    if of.counted:
        where.append(found[OF + ORDINAL])
    origin = f"coalesce({found[TIMER]}, concat_ws(':', {', '.join(where)}))"
    return f"concat_ws(':', {literal(name)}, {origin}, {found[OUTPUT]})"


def _of_lane(lanes: Mapping[str, Lane], texts: Mapping[str, str]) -> str:
    cases = (f"WHEN {each.number} THEN {texts[output]}" for output, each in lanes.items())
    return f"CASE {LANE} {' '.join(cases)} END"
