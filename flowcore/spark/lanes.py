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

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from flowcore.graph.expressions import Expression

__all__ = ["BAD", "LANE", "ORDINAL", "Lane", "Tracks", "unite"]

BAD = 0
LANE = "_lane"
ORDINAL = "_ordinal"


@dataclass(frozen=True, slots=True)
class Lane:
    """One branch of a query.

    Attributes:
        number: The value of the lane column in its rows.
        columns: Logical name to physical name, in order.
    """

    number: int
    columns: Mapping[str, str]

    def column(self, name: str) -> Column:
        """The column by its logical name, whatever its case."""
        return F.col(self.lower[name.lower()])

    def expression(self, expression: Expression) -> Column:
        """An expression over its columns."""
        return F.expr(expression.renamed(self.lower))

    @property
    def lower(self) -> dict[str, str]:
        """Physical names by lower-case logical name, as expressions look them up."""
        return {name.lower(): physical for name, physical in self.columns.items()}


class Tracks:
    """A frame and the lanes that its rows are in.

    Args:
        frame: Rows; with the lane column if ``shared``.
        names: Fresh physical column names, the same at every start of the query.
        shared: Rows of other lanes may be among them.
        identified: Its rows still carry the coordinates of the record they came from.
    """

    def __init__(self, frame: DataFrame, names: Iterator[str], *, shared: bool, identified: bool) -> None:
        self.frame = frame
        self.names = names
        self.shared = shared
        self.identified = identified

    def mine(self, lane: Lane) -> Column:
        """True for the rows of a lane."""
        return F.col(LANE) == lane.number if self.shared else F.lit(True)

    def only(self, lane: Lane) -> DataFrame:
        """The rows of a lane, its columns under their logical names."""
        frame = self.frame.where(self.mine(lane)) if self.shared else self.frame
        return frame.select([F.col(physical).alias(name) for name, physical in lane.columns.items()])

    def compute(self, lane: Lane, new: Mapping[str, Column], order: Sequence[str]) -> Lane:
        """Add computed columns; ``order`` says which columns the lane has then."""
        names = {column: next(self.names) for column in new}
        if self.shared:
            # Rows of other lanes, bad ones too, may hold what this lane's conditions drop: 1 / 0 fails.
            new = {column: F.when(self.mine(lane), value) for column, value in new.items()}
        self.frame = self.frame.withColumns({names[column]: value for column, value in new.items()})
        known = {**lane.lower, **{column.lower(): name for column, name in names.items()}}
        return replace(lane, columns={column: known[column.lower()] for column in order})

    def keep(self, lane: Lane, condition: Column) -> None:
        """Drop the rows of a lane for which the condition is not true."""
        others = ~self.mine(lane)
        self.frame = self.frame.where(others | condition if self.shared else condition)

    def split(self, lane: Lane, numbers: Sequence[int]) -> list[Lane]:
        """Copy each row of a lane into several lanes."""
        copies = F.when(self.mine(lane), F.array([F.lit(number) for number in numbers]))
        lanes = F.explode(copies.otherwise(F.array(F.col(LANE))) if self.shared else copies)
        self.frame = self.frame.withColumn(LANE, lanes)
        self.shared = True
        return [replace(lane, number=number) for number in numbers]

    def join(self, lane: Lane, right: DataFrame, on: Sequence[tuple[str, str]], how: str) -> dict[str, str]:
        """Join a lane with a small static frame; returns the right side's columns.

        Rows of other lanes find no partner and stay. ``right`` may hold the column `ORDINAL`, the
        position of a row among those with the same key, from 0.
        """
        if how in ("semi", "anti"):
            right = right.select([F.col(f"`{theirs}`") for _, theirs in on]).distinct()
        names = {column: next(self.names) for column in right.columns}
        hit = next(self.names)
        small = F.broadcast(
            right.select(*(F.col(f"`{c}`").alias(name) for c, name in names.items()), F.lit(True).alias(hit))
        )
        condition = self.mine(lane)
        for mine, theirs in on:
            condition &= lane.column(mine) == F.col(_physical(names, theirs))
        self.frame = self.frame.join(small, condition, "left")
        if how in ("inner", "semi"):
            self.keep(lane, F.col(hit))
        elif how == "anti":
            self.keep(lane, F.col(hit).isNull())
        if ORDINAL in names and self.identified:
            # The first partner leaves the number as it is, so an id does not depend on there being others.
            step = F.col(names[ORDINAL])
            longer = F.concat(F.col(ORDINAL), F.lit(f".{names[ORDINAL]}-"), step.cast("string"))
            self.frame = self.frame.withColumn(ORDINAL, F.when(step > 0, longer).otherwise(F.col(ORDINAL)))
        return {column: name for column, name in names.items() if column != ORDINAL}


def unite(members: Sequence[tuple[Tracks, Lane]], columns: Sequence[str], number: int) -> tuple[Tracks, Lane]:
    """Bring lanes of one or of several frames into one lane."""
    frames: list[Tracks] = list(dict.fromkeys(tracks for tracks, _ in members))
    first = frames[0]
    names = {column: next(first.names) for column in columns}
    for tracks in frames:
        lanes = [lane for owner, lane in members if owner is tracks]
        _merge(tracks, lanes, names, number)
    shared = any(tracks.shared for tracks in frames)
    for tracks in frames:
        if shared and not tracks.shared:
            tracks.frame = tracks.frame.withColumn(LANE, F.lit(number))
    united = first.frame
    for tracks in frames[1:]:
        united = united.unionByName(tracks.frame, allowMissingColumns=True)
    identified = all(tracks.identified for tracks in frames)
    return Tracks(united, first.names, shared=shared, identified=identified), Lane(number, names)


def _merge(tracks: Tracks, lanes: Sequence[Lane], names: Mapping[str, str], number: int) -> None:
    def choose(column: str) -> Column:
        chosen = lanes[-1].column(column)
        for lane in reversed(lanes[:-1]):
            chosen = F.when(tracks.mine(lane), lane.column(column)).otherwise(chosen)
        return chosen

    merged = {name: choose(column) for column, name in names.items()}
    if len(lanes) > 1 and tracks.identified:
        # A record that came through several branches comes out as several records, each with its own id.
        ordinal = F.col(ORDINAL)
        for branch, lane in enumerate(lanes[1:], 1):
            longer = F.concat(F.col(ORDINAL), F.lit(f".{number}-{branch}"))
            ordinal = F.when(tracks.mine(lane), longer).otherwise(ordinal)
        merged[ORDINAL] = ordinal
    tracks.frame = tracks.frame.withColumns(merged)
    if tracks.shared:
        numbers = [lane.number for lane in lanes]
        lane_now = F.when(F.col(LANE).isin(numbers), F.lit(number)).otherwise(F.col(LANE))
        tracks.frame = tracks.frame.withColumn(LANE, lane_now)


def _physical(names: Mapping[str, str], column: str) -> str:
    return next(name for known, name in names.items() if known.lower() == column.lower())
