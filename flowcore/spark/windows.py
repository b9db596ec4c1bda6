"""Windows in a live query: from a lane's records to lanes of results and of late records."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from flowcore.graph.operators import Operator, Read, SideOutput, Window, topic_of
from flowcore.graph.stateful import LATE, WINDOW_COLUMNS
from flowcore.keygroups import emission
from flowcore.keygroups.event_time import Source
from flowcore.keygroups.folded import FoldedWindows
from flowcore.keygroups.operator import KeyGroupOperator
from flowcore.keygroups.packing import Inputs, Packing
from flowcore.keygroups.records import ORDINAL as OUTPUT
from flowcore.keygroups.records import RecordWindows
from flowcore.keygroups.result_types import result_type
from flowcore.keygroups.runtime import Runtime
from flowcore.planner.plan import LiveQuery
from flowcore.spark.beside import Beside
from flowcore.spark.keygroups import (
    COUNTER_ROWS,
    COUNTERS,
    MARKER_ROWS,
    MARKERS,
    Outlet,
    Unpacking,
    by_key_group,
)
from flowcore.spark.lanes import EVENT, IDENTITY, LANE, NEWEST, ORDINAL, SOURCE, TIME, VALUE, Lane, Tracks
from flowcore.spark.python_chain import arrow_schema, types_of
from flowcore.spark.sql import literal, quoted
from flowcore.spark.watermarks import CHANNEL, ELEMENT
from flowcore.watermarks import no_watermarks
from flowcore.watermarks.strategies import PeriodicFunction

__all__ = ["Windowed", "counted_as", "goes_by_clock", "windowed"]

_COUNTED = -4
_COUNTERS = "_counters"
_OWN = "_flowcore_"
"""In front of names beside the user's."""
_OF = f"{_OWN}of_"
"""In front of what says where a late record was."""
_TIMES_SHOWN = (-62_135_596_800_000, 253_402_300_799_999)
"""The years 1 to 9999, in which Spark shows times; the ends of 64-bit time are far out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Windowed:
    """What windows need to know of their query.

    Attributes:
        query: The query.
        checkpoint: Where its checkpoint is: tells its state from that of others.
        beside: What it carries beside its records.
        key_groups: How many key groups there are.
        counted: Its records carry an ordinal.
        numbers: Of new lanes.
    """

    query: LiveQuery
    checkpoint: str
    beside: Beside
    key_groups: int
    counted: bool
    numbers: Iterator[int]


def counted_as(node: Operator) -> str:
    """The name of an operator's counters in a batch's progress."""
    return f"flowcore-keygroups-{node.name}"


def goes_by_clock(query: LiveQuery) -> bool:
    """Whether windows may emit because time has passed, without any input."""
    topics = [topic_of(source) for source in query.sources]
    idle = any(topic and topic.watermark and topic.watermark.idle_after_ms for topic in topics)
    windows = [node.config for node in query.operators if isinstance(node, Window)]
    return idle or any(config.time == "processing" or config.trigger is not None for config in windows)


def windowed(
    node: Window, tracks: Tracks, lane: Lane, used: Collection[str], of: Windowed
) -> tuple[Tracks, Mapping[str, Lane]]:
    """The results of windows over a lane's records and, where they leave, late records.

    Args:
        node: The windows.
        tracks: Rows, the lane's among them.
        lane: The records.
        used: The input's columns that readers of late records use, in lower case.
        of: The query.
    """
    computed = {name: lane.expression(expression) for name, expression in node.computed}
    if computed:
        lane = tracks.compute(lane, computed, [*lane.columns, *computed])
    late = _late_columns(node, lane, used, of)
    columns = _record_columns(node, lane, late)
    frame = _input(node, tracks, lane, columns, of)
    names = [_time(), *columns]
    rows = to_arrow_schema(StructType([frame.schema[name] for name in names]), timezone="UTC")
    operator = _operator(node, rows, tuple(late))
    packing = Packing(
        inputs=_inputs(frame),
        sources=tuple(source.name for source in of.query.sources),
        key_groups=of.key_groups,
        rows=rows,
        functions={
            source.name: topic.watermark.generator.function
            for source in of.query.sources
            if (topic := topic_of(source))
            and topic.watermark
            and isinstance(topic.watermark.generator, PeriodicFunction)
        },
    )
    runtime = Runtime(
        operator=operator,
        query=f"{of.checkpoint}/{node.name}",
        key_groups=of.key_groups,
        sources={source.name: _source(source, of.beside) for source in of.query.sources},
        rows=rows,
    )
    stepped = by_key_group(frame, packing, runtime)
    return _lanes(node, stepped, operator, tracks, late, of)


def _operator(node: Window, rows: pa.Schema, late: tuple[str, ...]) -> KeyGroupOperator:
    types = {field.name: field.type for field in rows}
    if FoldedWindows.refusal(node.config, types) is None:
        return FoldedWindows(config=node.config, keys=node.by, timestamp=_time(), rows=rows, late=late)
    return RecordWindows(
        name=node.name,
        config=node.config,
        keys=node.by,
        key_of=node.key_of,
        values=tuple(_values(node)),
        timestamp=_time(),
        rows=rows,
        results=_results(node, types),
        late=late,
    )


def _values(node: Window) -> list[str]:
    """The columns of a record as functions see it."""
    return list(dict.fromkeys([*node.uses, *(name for name, _ in node.computed)]))


def _results(node: Window, types: Mapping[str, pa.DataType]) -> pa.Schema:
    if node.schema is not None:
        return arrow_schema(types_of(node.schema))
    known = {name.lower(): kind for name, kind in types.items()}
    if not node.built_in:
        return pa.schema([(name, known[name.lower()]) for name in node.values])
    return pa.schema([(name, result_type(each, types)) for name, each in node.built_in])


def _source(node: Read, beside: Beside) -> Source:
    topic = topic_of(node)
    if topic is None:
        return Source(None, ())
    partitions = tuple(map(str, range(beside.partitions[topic.name])))
    arriving = topic.watermark is None and topic.elements == "tagged"
    return Source(None if arriving else topic.watermark or no_watermarks(), partitions)


def _late_columns(node: Window, lane: Lane, used: Collection[str], of: Windowed) -> dict[str, str]:
    """The columns that late records leave with, and what these are called in front of the windows."""
    if not any(isinstance(each, SideOutput) and node in each.inputs for each in of.query.operators):
        return {}
    columns = {name: now for name, now in lane.columns.items() if name.lower() in used}
    coordinates = [SOURCE, "partition", "offset", *([ORDINAL] if of.counted else [])]
    return {**columns, **{f"{_OF}{name}": name for name in coordinates}}


def _record_columns(node: Window, lane: Lane, late: Mapping[str, str]) -> dict[str, str]:
    """Every column that records need, and what it is called in front of the windows."""
    read = [column for _, each in node.built_in for column in each.columns] if node.built_in else node.uses
    known = {name.lower(): (name, now) for name, now in lane.columns.items()}
    names = [*node.by, *read, *(name for name, _ in node.computed)]
    return {**{name: known[name.lower()][1] for name in names}, **late}


def _input(node: Window, tracks: Tracks, lane: Lane, columns: Mapping[str, str], of: Windowed) -> DataFrame:
    keys = ", ".join(lane.column(name) for name in node.by)
    group = f"CAST(pmod(hash({keys}), {of.key_groups}) AS INT)" if keys else "0"
    texts = {
        "key_group": group,
        "source": SOURCE,
        "partition": "partition",
        "offset": "offset",
        "newest_ms": NEWEST,
        "record": tracks.mine(lane),
        "timestamp_ms": TIME,
    }
    there = set(tracks.frame.columns)
    if ELEMENT in there:
        texts |= {"element": f"CASE WHEN {LANE} = -2 THEN {ELEMENT} END", "sender": CHANNEL}
    if tracks.marked:
        texts["event"] = f"CASE WHEN {LANE} = {EVENT} THEN {VALUE} END"
    own = (f"{text} AS {_OWN}{name}" for name, text in texts.items())
    return tracks.frame.selectExpr(
        *own, *(f"{quoted(now)} AS {quoted(name)}" for name, now in columns.items())
    )


def _inputs(frame: DataFrame) -> Inputs:
    def named(name: str) -> str | None:
        return _OWN + name if _OWN + name in frame.columns else None

    return Inputs(
        key_group=f"{_OWN}key_group",
        source=f"{_OWN}source",
        partition=f"{_OWN}partition",
        offset=f"{_OWN}offset",
        newest=f"{_OWN}newest_ms",
        record=f"{_OWN}record",
        element=named("element"),
        sender=named("sender"),
        marker=named("event"),
    )


def _lanes(  # noqa: PLR0917 - what was made on the way
    node: Window,
    stepped: DataFrame,
    operator: KeyGroupOperator,
    tracks: Tracks,
    late: Mapping[str, str],
    of: Windowed,
) -> tuple[Tracks, Mapping[str, Lane]]:
    results = Lane(next(of.numbers), {}, identified=False, named=True)
    later = Lane(next(of.numbers), {})
    schemas = {**operator.outputs, MARKERS: MARKER_ROWS, COUNTERS: COUNTER_ROWS}
    numbers = {emission.RESULTS: results.number, LATE: later.number, MARKERS: EVENT, COUNTERS: _COUNTED}
    physical = {
        emission.RESULTS: {name: next(tracks.names) for name in schemas[emission.RESULTS].names},
        LATE: {name: next(tracks.names) for name in schemas[LATE].names},
        MARKERS: {"event": VALUE, "partition": "partition"},
        COUNTERS: {"counters": _COUNTERS},
    }
    fields = {LANE: pa.int32()}
    for output, names in physical.items():
        fields |= {now: schemas[output].field(name).type for name, now in names.items()}
    schema = pa.schema(fields)
    unpacking = Unpacking(
        outlets={
            output: Outlet(
                schema=schemas[output],
                columns={now: name for name, now in names.items()},
                lane=numbers[output],
            )
            for output, names in physical.items()
        },
        schema=schema,
        lane=LANE,
    )
    frame = stepped.mapInArrow(unpacking.run, from_arrow_schema(schema))
    frame = _observed(node, frame).where(f"{LANE} <> {_COUNTED}")
    found = physical[emission.RESULTS]
    columns = {name: found[name] for name in node.columns if name in found}
    shown = {
        "window_start": _shown(found[emission.START]),
        "window_end": _shown(found[emission.END]),
        "firing": found[emission.FIRING],
        "is_late": found[emission.IS_LATE],
    }
    made = {name: next(tracks.names) for name in WINDOW_COLUMNS}
    texts = [f"{shown[name]} AS {now}" for name, now in made.items()]
    beside = _beside(node, results, physical, late, of)
    texts += [f"{text} AS {name}" for name, text in beside.items()]
    frame = frame.selectExpr("* EXCEPT (partition)", *texts)
    after = Tracks(frame, tracks.names, identified=bool(late), marked=tracks.marked)
    after.shared = True
    ordered = {name: {**columns, **made}[name] for name in node.columns}
    late_columns = {name: physical[LATE][name] for name in late if not name.startswith(_OWN)}
    lanes = {emission.RESULTS: _with(results, ordered), LATE: _with(later, late_columns)}
    return after, lanes


def _beside(
    node: Window,
    results: Lane,
    physical: Mapping[str, Mapping[str, str]],
    late: Mapping[str, str],
    of: Windowed,
) -> dict[str, str]:
    """What rows carry beside their columns: identity and timestamp, and of late records where they were."""
    found, mine = physical[emission.RESULTS], f"{LANE} = {results.number}"
    keys = ", ".join(f"{found[name]} AS {quoted(name)}" for name in node.by)
    key = f"to_json(struct({keys}))" if keys else "'{}'"
    parts = [literal(node.name), key, found[emission.START], found[emission.END], found[emission.FIRING]]
    if OUTPUT in found:
        parts.append(found[OUTPUT])
    texts = {
        IDENTITY: f"CASE WHEN {mine} THEN concat_ws(':', {', '.join(parts)}) END",
        TIME: found[emission.TIMESTAMP],
        "partition": "partition",
    }
    if of.counted:
        texts[ORDINAL] = "'0'"
    if late:
        where = physical[LATE]
        topics = [topic_of(source) for source in of.query.sources]
        cases = [f"WHEN {number} THEN {literal(topic.name)}" for number, topic in enumerate(topics) if topic]
        texts["topic"] = f"CASE {where[_OF + SOURCE]} {' '.join(cases)} END"
        texts["partition"] = f"coalesce({where[_OF + 'partition']}, partition)"
        texts["offset"] = where[_OF + "offset"]
        if of.counted:
            texts[ORDINAL] = f"coalesce({where[_OF + ORDINAL]}, '0')"
    return texts


def _observed(node: Window, frame: DataFrame) -> DataFrame:
    def total(name: str) -> str:
        return f"CAST(get_json_object({_COUNTERS}, '$.{name}') AS BIGINT)"

    return frame.observe(
        counted_as(node),
        F.expr(f"coalesce(sum({total('late_records')}), 0)").alias("late_records"),
        F.expr(f"coalesce(sum({total('dropped_records')}), 0)").alias("dropped_records"),
        F.expr(f"coalesce(sum({total('state_bytes')}), 0)").alias("state_bytes"),
        F.expr(f"min({total('watermark_ms')})").alias("watermark_ms"),
    )


def _shown(time_ms: str) -> str:
    least, most = _TIMES_SHOWN
    return f"CASE WHEN {time_ms} BETWEEN {least} AND {most} THEN timestamp_millis({time_ms}) END"


def _with(lane: Lane, columns: Mapping[str, str]) -> Lane:
    return Lane(lane.number, columns, identified=lane.identified, named=lane.named)


def _time() -> str:
    return f"{_OWN}timestamp_ms"
