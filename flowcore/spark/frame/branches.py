"""Lanes: how do several branches, and bad records, pass through one query beside each other?

Real-time mode reads a source once, so everything that comes from it must stay in one frame. Each row
is in one *lane*, an integer column. An operator works on the rows of its lane and lets the others
pass; where branches part, a row is copied into a lane for each. Lane 0 holds the bad records of
all sources: nothing touches them on their way to the dead-letter topic.

Columns get a new physical name whenever they are computed, so that lanes never disturb each other:
a lane knows what its columns are called now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from flowcore.api.expressions import Expression
from flowcore.spark.frame.sql import quoted

__all__ = [
    "BAD",
    "EVENT",
    "FAILED",
    "GONE",
    "IDENTITY",
    "KAFKA_MS",
    "LANE",
    "NEWEST",
    "ORDINAL",
    "REASON",
    "SOURCE",
    "TIME",
    "VALUE",
    "Lane",
    "Tracks",
    "unite",
]

BAD = 0
EVENT = -1
GONE = -3
"""Records that were dropped, where they still tell windows how far event time has come."""
LANE = "_lane"
ORDINAL = "_ordinal"
TIME = "_timestamp_ms"
"""When a record happened; there only where a sink writes it or windows go by it."""
IDENTITY = "_identity"
"""What tells an output of a window from all others; there only behind windows."""
SOURCE, NEWEST = "_source", "_newest_ms"
"""The number of a record's source, and its timestamp if that counts for watermarks; only before windows."""
VALUE, REASON, KAFKA_MS = "_value", "_reason", "_kafka_ms"
"""Of rows outside the record lanes: their bytes, and of bad ones why, and the time that Kafka keeps."""
FAILED = "_failed"
"""Of bad rows: the operator whose function failed, null if the message could not be read. There only where
functions run; then record lanes have the bytes and the time, too."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One branch of a query.

    Attributes:
        number: The value of the lane column in its rows.
        columns: Logical name to physical name, in order.
        identified: Its rows still carry the coordinates of the record they came from, if any of its frame do.
        named: Its rows have an identity of their own, in the column `IDENTITY`.
    """

    number: int
    columns: Mapping[str, str]
    identified: bool = True
    named: bool = False

    def column(self, name: str) -> str:
        """The column by its logical name, whatever its case."""
        return quoted(self.lower[name.lower()])

    def expression(self, expression: Expression) -> str:
        """An expression over its columns."""
        # The line ends before the bracket does, since a comment may be the last thing that a user wrote.
        return f"({expression.renamed(self.lower)}\n)"

    @property
    def lower(self) -> dict[str, str]:
        """Physical names by lower-case logical name, as expressions look them up."""
        return {name.lower(): physical for name, physical in self.columns.items()}


class Tracks:
    """A frame and the lanes that its rows are in.

    Args:
        frame: Rows; with the lane column if it is `shared`.
        names: Fresh physical column names, the same at every start of the query.
        identified: Its rows still carry the coordinates of the record they came from.
        bad: Bad records may be among them.
        marked: Latency markers may be among them.
        telling: Windows follow, so records that are dropped go on telling of time.
    """

    def __init__(
        self,
        frame: DataFrame,
        names: Iterator[str],
        *,
        identified: bool,
        bad: bool = False,
        marked: bool = False,
        telling: bool = False,
    ) -> None:
        self.frame = frame
        self.names = names
        self.identified = identified
        self.bad = bad
        self.marked = marked
        self.telling = telling
        self.shared = bad or marked or telling

    def mine(self, lane: Lane) -> str:
        """True for the rows of a lane."""
        return f"{LANE} = {lane.number}" if self.shared else "true"

    def only(self, lane: Lane) -> DataFrame:
        """The rows of a lane, its columns under their logical names."""
        frame = self.frame.where(self.mine(lane)) if self.shared else self.frame
        return frame.selectExpr(*(f"{quoted(now)} AS {quoted(name)}" for name, now in lane.columns.items()))

    def compute(self, lane: Lane, new: Mapping[str, str], order: Sequence[str]) -> Lane:
        """Add computed columns; ``order`` says which columns the lane has then."""
        names = {column: next(self.names) for column in new}
        if self.shared:
            # Rows of other lanes, bad ones too, may hold what this lane's conditions drop: 1 / 0 fails.
            new = {column: f"CASE WHEN {self.mine(lane)} THEN {value} END" for column, value in new.items()}
        self.frame = self.frame.selectExpr(
            "*", *(f"{new[column]} AS {name}" for column, name in names.items())
        )
        known = {**lane.lower, **{column.lower(): name for column, name in names.items()}}
        return replace(lane, columns={column: known[column.lower()] for column in order})

    def keep(self, lane: Lane, condition: str) -> None:
        """Drop the rows of a lane for which the condition is not true."""
        if self.telling:
            gone = f"{self.mine(lane)} AND NOT coalesce({condition}, false)"
            self.set({LANE: f"CASE WHEN {gone} THEN {GONE} ELSE {LANE} END"})
            return
        self.frame = self.frame.where(
            f"NOT ({self.mine(lane)}) OR ({condition})" if self.shared else condition
        )

    def split(self, lane: Lane, numbers: Sequence[int]) -> list[Lane]:
        """Copy each row of a lane into several lanes."""
        copies = f"array({', '.join(map(str, numbers))})"
        if self.shared:
            copies = f"CASE WHEN {self.mine(lane)} THEN {copies} ELSE array({LANE}) END"
        self.set({LANE: f"explode({copies})"})
        self.shared = True
        return [replace(lane, number=number) for number in numbers]

    def join(self, lane: Lane, right: DataFrame, on: Sequence[tuple[str, str]], how: str) -> dict[str, str]:
        """Join a lane with a small static frame; returns the right side's columns.

        Rows of other lanes find no partner and stay. ``right`` may hold the column `ORDINAL`, the
        position of a row among those with the same key, from 0.
        """
        if how in ("semi", "anti"):
            right = right.selectExpr(*(quoted(theirs) for _, theirs in on)).distinct()
        names = {column: next(self.names) for column in right.columns}
        hit = next(self.names)
        renamed = (f"{quoted(column)} AS {name}" for column, name in names.items())
        small = F.broadcast(right.selectExpr(*renamed, f"true AS {hit}"))
        equal = (f"{lane.column(mine)} = {_physical(names, theirs)}" for mine, theirs in on)
        condition = F.expr(" AND ".join([self.mine(lane), *equal]))
        self.frame = self.frame.join(small, condition, "left")
        if how in ("inner", "semi"):
            self.keep(lane, hit)
        elif how == "anti":
            self.keep(lane, f"{hit} IS NULL")
        if ORDINAL in names and self.identified:
            # The first partner leaves the number as it is, so an id does not depend on there being others.
            step = names[ORDINAL]
            self.set({ORDINAL: f"{ORDINAL} || CASE WHEN {step} > 0 THEN '.{step}-' || {step} ELSE '' END"})
        return {column: name for column, name in names.items() if column != ORDINAL}

    def set(self, columns: Mapping[str, str]) -> None:
        """Replace columns, or add them."""
        self.frame = self.frame.withColumns({name: F.expr(text) for name, text in columns.items()})


def unite(members: Sequence[tuple[Tracks, Lane]], columns: Sequence[str], number: int) -> tuple[Tracks, Lane]:
    """Bring lanes of one or of several frames into one lane."""
    frames: list[Tracks] = list(dict.fromkeys(tracks for tracks, _ in members))
    first = frames[0]
    names = {column: next(first.names) for column in columns}
    shared = any(tracks.shared for tracks in frames)
    for tracks in frames:
        lanes = [lane for owner, lane in members if owner is tracks]
        tracks.set(_merged(tracks, lanes, names, number))
        if shared and not tracks.shared:
            tracks.set({LANE: str(number)})
    united = first.frame
    for tracks in frames[1:]:
        united = united.unionByName(tracks.frame, allowMissingColumns=True)
    identified = all(tracks.identified for tracks in frames)
    bad, marked = any(tracks.bad for tracks in frames), any(tracks.marked for tracks in frames)
    telling = any(tracks.telling for tracks in frames)
    together = Tracks(united, first.names, identified=identified, bad=bad, marked=marked, telling=telling)
    together.shared = shared
    return together, Lane(number, names, identified=all(lane.identified for _, lane in members))


def _merged(tracks: Tracks, lanes: Sequence[Lane], names: Mapping[str, str], number: int) -> dict[str, str]:
    *earlier, last = lanes

    def choose(column: str) -> str:
        cases = (f"WHEN {tracks.mine(lane)} THEN {lane.column(column)}" for lane in earlier)
        return f"CASE {' '.join(cases)} ELSE {last.column(column)} END" if earlier else last.column(column)

    merged = {name: choose(column) for column, name in names.items()}
    if earlier and tracks.identified:
        # A record that came through several branches comes out as several records, each with its own id.
        branches = enumerate(lanes[1:], 1)
        cases = (f"WHEN {tracks.mine(lane)} THEN '.{number}-{branch}'" for branch, lane in branches)
        merged[ORDINAL] = f"{ORDINAL} || CASE {' '.join(cases)} ELSE '' END"
    if tracks.shared:
        numbers = ", ".join(str(lane.number) for lane in lanes)
        merged[LANE] = f"CASE WHEN {LANE} IN ({numbers}) THEN {number} ELSE {LANE} END"
    return merged


def _physical(names: Mapping[str, str], column: str) -> str:
    return next(name for known, name in names.items() if known.lower() == column.lower())
