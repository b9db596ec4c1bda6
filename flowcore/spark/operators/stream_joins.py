"""Joins of two streams in a live query: from two branches to branches of pairs and of late records.

The records of both sides are in one frame and in one shuffle. A record has the columns of its own side, and a
column that names the side. A window join is an interval join of rows whose time is the last millisecond of
their window, and a regular join is one in processing time. Rows that may be taken back have a text that names
them, made of their key and of the key that is joined on: with another key it is another row, so that it does
not matter in which order key groups emit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from flowcore.api.arrival_joins import ROW_ID
from flowcore.api.operators import (
    JoinAsOf,
    JoinLatest,
    JoinRegular,
    JoinWindow,
    JoinWithLateness,
    SideOutput,
    StreamJoin,
)
from flowcore.api.retraction import CHANGE_COLUMN
from flowcore.api.stateful import IS_DELETED
from flowcore.api.stream_joins import JOIN_WINDOW_COLUMNS
from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.errors import PlanError
from flowcore.joins.asof import AsOfJoin
from flowcore.joins.group import JoinConfig
from flowcore.joins.interval import IntervalJoin
from flowcore.joins.latest import LatestJoin
from flowcore.joins.retracting import RetractingJoin
from flowcore.keyed.output_columns import DELETED, EMISSION, LATE_LEFT, LATE_RIGHT, RESULTS, TIMESTAMP
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.record_ids import key_text
from flowcore.spark.frame.rows import RECORD_ID, RECORD_ORDINAL, TIMESTAMP_MS
from flowcore.spark.frame.sql import displayable_timestamp, literal
from flowcore.spark.operators.key_group_context import (
    COORDINATE_PREFIX,
    PREFIX,
    RECORD_TIMESTAMP,
    KeyGroupContext,
)
from flowcore.spark.operators.keyed_step import KeyedStep, StepOutput

__all__ = ["prepare_stream_join"]

_SIDE = f"{PREFIX}is_right"
_ROW = f"{PREFIX}row"
"""The column with the text that names a row of a side that may be taken back."""
_WINDOW_LAST = f"{PREFIX}window_last_ms"
_ONE_SIDED = ("semi", "anti")
"""The joins whose output has no right record."""


@dataclass(frozen=True, slots=True)
class _Side:
    """The left or the right input of a join.

    Attributes:
        prefix: Begins the names that its columns have in key groups.
        in_output: Its records are part of the output.
        results: Its columns in the output besides the key, as far as they are used.
        late: The operators that read its late records.
        late_columns: The columns that they use.
        columns: All columns that its records need besides the key: the physical ones by name.
        deleted: The one of these that is true where a record deletes its key; None if no record does.
        row: SQL text that names a row that may be taken back; None if the rows are final.
    """

    branch: Branch
    prefix: str
    in_output: bool
    results: Sequence[str]
    late: Sequence[SideOutput]
    late_columns: Sequence[str]
    columns: Mapping[str, str]
    deleted: str | None
    row: str | None

    @property
    def row_name(self) -> str | None:
        """The column with the names of its rows; None if they are final."""
        return f"{self.prefix}{_ROW}" if self.row else None


def prepare_stream_join(
    node: StreamJoin, branched: BranchedFrame, branches: Sequence[Branch], context: KeyGroupContext
) -> KeyedStep:
    """A join of the records of two branches, left and right; late records leave if they are read."""
    left, right = (_describe_side(node, number, branch, context) for number, branch in enumerate(branches))
    texts = {_SIDE: ("false", "true")}
    if isinstance(node, JoinWindow):
        texts[_WINDOW_LAST] = (_window_last(node),) * 2
    for mine, theirs in node.on:
        _require_same_type(node, branched, left.branch, right.branch, mine, theirs)
        texts[mine] = left.branch.column(mine), right.branch.column(theirs)
    texts |= _describe_changes(left, right)
    names = {name: next(branched.names) for name in texts}
    numbers = [each.number for each in branches]
    branched.choose({names[name]: dict(zip(numbers, each, strict=True)) for name, each in texts.items()})
    _give_ids(branched, branches, context)
    outputs = {RESULTS: _describe_pairs(node, left, right, context)}
    for output, side in ((LATE_LEFT, left), (LATE_RIGHT, right)):
        if side.late:
            outputs[output] = StepOutput(
                nodes=side.late,
                number=next(context.numbers),
                columns={name: f"{side.prefix}{name}" for name in side.late_columns},
                passed=side.branch,
            )
    return KeyedStep(
        node=node,
        context=context,
        keys=node.by,
        branch=Branch(
            left.branch.number,
            names,
            has_coordinates=left.branch.has_coordinates or right.branch.has_coordinates,
            has_record_id=left.branch.has_record_id or right.branch.has_record_id,
        ),
        columns={
            **names,
            **{f"{side.prefix}{name}": now for side in (left, right) for name, now in side.columns.items()},
        },
        make=lambda records, _: _make_join(node, records, left, right, context),
        outputs=outputs,
        record=f"{names[_SIDE]} IS NOT NULL",
        spreads_null_keys=True,  # they join nothing
        row_name=_ROW if left.row or right.row else None,
    )


def _describe_changes(left: _Side, right: _Side) -> dict[str, tuple[str, str]]:
    """SQL texts of whether a row is taken back, and of its name, for both sides, if some rows are."""
    if not (left.row or right.row):
        return {}
    changes, names = (
        [side.branch.column(CHANGE_COLUMN) if side.row else "1Y", side.row or "CAST(NULL AS STRING)"]
        for side in (left, right)
    )
    return dict(zip((CHANGE_COLUMN, _ROW), zip(changes, names, strict=True), strict=True))


def _give_ids(branched: BranchedFrame, branches: Sequence[Branch], context: KeyGroupContext) -> None:
    """Give all records an id, if those of one side have one, and those of the other a place in a topic."""
    places = [each for each in branches if each.has_coordinates and not each.has_record_id]
    if places and any(each.has_record_id for each in branches):
        place = context.record_ids.of_place("topic", "partition", "offset")
        branched.set_in(places[0], {RECORD_ID: place})


def _describe_side(node: StreamJoin, number: int, branch: Branch, context: KeyGroupContext) -> _Side:
    used = context.query.used_columns
    late = context.side_outputs.get((LATE_LEFT, LATE_RIGHT)[number], ())
    read = {column.lower() for each in late for column in used[each]}
    in_output = number == 0 or node.how not in _ONE_SIDED
    deleted = node.deleted if number and isinstance(node, JoinLatest) else None
    results = node.side_columns(number, used[node]) if in_output else []
    own = {name.lower() for name in results}
    changes = node.changelogs[number] if isinstance(node, JoinRegular) else None
    named = dict.fromkeys((*changes.by, *(pair[number] for pair in node.on))) if changes else {}
    return _Side(
        branch=branch,
        prefix=f"{PREFIX}{('left', 'right')[number]}_",
        in_output=in_output,
        results=results,
        late=late,
        late_columns=[name for name in branch.columns if name.lower() in read],
        columns={
            name: now for name, now in branch.columns.items() if name.lower() in read | own or name == deleted
        },
        deleted=deleted,
        row=key_text({name: branch.column(name) for name in named}) if changes else None,
    )


def _window_last(node: JoinWindow) -> str:
    """SQL text of the last millisecond of a record's window."""
    size_ms = node.size_ms
    since = f"pmod(pmod({TIMESTAMP_MS}, {size_ms}L) - {node.offset_ms % size_ms}L, {size_ms}L)"
    left = f"({size_ms - 1}L - {since})"
    last = f"{MAX_TIMESTAMP_MS}L"
    return f"CASE WHEN {TIMESTAMP_MS} > {last} - {left} THEN {last} ELSE {TIMESTAMP_MS} + {left} END"


def _require_same_type(  # noqa: PLR0917 - the join, then a pair of columns
    node: StreamJoin, branched: BranchedFrame, left: Branch, right: Branch, mine: str, theirs: str
) -> None:
    types = [
        branched.frame.schema[branch.physical_names[name.lower()]].dataType.simpleString().upper()
        for branch, name in ((left, mine), (right, theirs))
    ]
    if types[0] != types[1]:
        msg = (
            f"operator {node.name!r}: {mine!r} of {node.inputs[0].name!r} is {types[0]}, and {theirs!r} of "
            f"{node.inputs[1].name!r} is {types[1]}: equal values would be in different key groups; cast one "
            f"of them, for instance with_columns({theirs}='CAST({theirs} AS {types[0]})')"
        )
        raise PlanError(msg)


def _make_join(
    node: StreamJoin, records: pa.Schema, left: _Side, right: _Side, context: KeyGroupContext
) -> JoinConfig:
    stored, rejected = [], []
    for side in (left, right):
        kept = [*side.results, *([side.deleted] if side.deleted else [])]
        own = [f"{side.prefix}{name}" for name in kept]
        places = {f"{side.prefix}{name}": name for name in context.coordinates}
        stored.append({**dict(zip(own, own, strict=True)), **places} if side.in_output else {})
        stored[-1] |= {side.row_name: _ROW} if side.row_name else {}
        late = (RECORD_TIMESTAMP, *(f"{side.prefix}{name}" for name in side.columns), *context.coordinates)
        rejected.append(late if side.late else ())
    drops = node.late == "drop"
    fields: dict[str, Any] = {
        "keys": node.by,
        "side": _SIDE,
        "timestamp": _WINDOW_LAST if isinstance(node, JoinWindow) else RECORD_TIMESTAMP,
        "how": node.how,
        "rows": records,
        "left": stored[0],
        "right": stored[1],
        "late_left": None if drops else rejected[0],
        "late_right": None if drops else rejected[1],
    }
    match node:
        case JoinAsOf():
            return AsOfJoin(**fields, tolerance_ms=node.tolerance_ms)
        case JoinLatest():
            deleted = None if right.deleted is None else f"{right.prefix}{right.deleted}"
            return LatestJoin(**fields, load=node.load, ttl_ms=node.ttl_ms, deleted=deleted)
        case JoinRegular():
            ttl_ms = MAX_TIMESTAMP_MS if node.ttl_ms is None else node.ttl_ms
            fields |= {"before_ms": ttl_ms, "after_ms": ttl_ms, "time": "processing"}
            if any(node.changelogs):
                names = left.row_name, right.row_name
                return RetractingJoin(**fields, change=CHANGE_COLUMN, row_names=names)
            return IntervalJoin(**fields)
        case JoinWithLateness():
            fields |= dict(zip(("before_ms", "after_ms"), node.lengths_ms, strict=True))
            return IntervalJoin(**fields, allowed_lateness_ms=node.allowed_lateness_ms)
        case _:
            raise NotImplementedError(type(node).__name__)


def _describe_pairs(node: StreamJoin, left: _Side, right: _Side, context: KeyGroupContext) -> StepOutput:
    """The branch of pairs and unmatched records."""
    sides = (left, right) if right.in_output else (left,)
    names = {IS_DELETED: DELETED} if node.updating else {}
    names |= {name.lower(): name for name in (*node.by, *JOIN_WINDOW_COLUMNS, ROW_ID)}
    names |= {name.lower(): f"{side.prefix}{name}" for side in sides for name in side.results}

    def find_origin(side: _Side, found: Mapping[str, str]) -> str:
        """A side's record within the id of a pair; empty if the pair has no record of the side."""
        place = {name: found[f"{side.prefix}{name}"] for name in context.coordinates}
        origin = f"coalesce({context.origins(place)}, '')"
        if not context.has_ordinals:
            return origin
        ordinal = place[COORDINATE_PREFIX + RECORD_ORDINAL]
        return f"concat({origin}, CASE WHEN {ordinal} <> '0' THEN ':' || {ordinal} ELSE '' END)"

    def find_row(side: _Side, found: Mapping[str, str]) -> str:
        """A side's row within the key of a pair: the name of one that may be taken back."""
        return f"coalesce({found[side.row_name]}, '')" if side.row_name else find_origin(side, found)

    def record_id(found: Mapping[str, str]) -> str:
        origins = ", '+', ".join(find_origin(side, found) for side in sides)
        # A row is emitted and deleted under different ids, also an unmatched one that is emitted again.
        change = ""
        if left.row or right.row:
            change = f", CASE WHEN {found[EMISSION]} > 0 THEN concat(':again', {found[EMISSION]}) ELSE '' END"
        change += f", CASE WHEN {found[DELETED]} THEN ':-' ELSE '' END" if node.updating else ""
        return f"concat({literal(f'{context.record_ids.states[node]}:')}, {origins}{change})"

    def compute(found: Mapping[str, str]) -> Mapping[str, str]:
        if node.updating:
            row = ", '+', ".join(find_row(side, found) for side in sides)
            return {ROW_ID: f"concat({row})"}
        if not isinstance(node, JoinWindow):
            return {}
        end = f"({found[TIMESTAMP]} + 1)"
        bounds = (displayable_timestamp(f"({end} - {node.size_ms}L)"), displayable_timestamp(end))
        return dict(zip(JOIN_WINDOW_COLUMNS, bounds, strict=True))

    used = context.query.used_columns[node]
    return StepOutput(
        nodes=[node],
        number=next(context.numbers),
        columns={name: names[name.lower()] for name in node.columns if name.lower() in used},
        computed=compute,
        record_id=record_id,
    )
