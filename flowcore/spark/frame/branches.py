"""Branches: several branches of a query, and rows of other kinds, share one frame.

Real-time mode reads a source once, so everything that is made of it stays in one frame. The column `BRANCH`
holds the number of the branch that a row belongs to, or its `RowKind`. An operator works on the rows of its
branch and passes all other rows on. Where branches part, each row is copied into all of them.

A computed column gets a new physical name, so that branches never disturb each other: a `Branch` maps the
logical names of its columns to physical names.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from flowcore.api.expressions import Expression
from flowcore.spark.frame.rows import BRANCH, RECORD_ID, RECORD_ORDINAL, RowKind
from flowcore.spark.frame.sql import literal, quote

__all__ = ["Branch", "BranchedFrame", "merge_frames", "unite"]


@dataclass(frozen=True, slots=True)
class Branch:
    """One branch of a query.

    Attributes:
        number: The value of the column `BRANCH` in its rows.
        columns: The physical names by logical name, in order.
        has_coordinates: Its rows carry the coordinates of their source record, if any rows of the frame do.
        has_record_id: Its rows carry their record id, in the column `RECORD_ID`.
    """

    number: int
    columns: Mapping[str, str]
    has_coordinates: bool = True
    has_record_id: bool = False

    def column(self, name: str) -> str:
        """The column with a logical name, in any case."""
        return quote(self.physical_names[name.lower()])

    def expression(self, expression: Expression) -> str:
        """An expression over its columns."""
        # On a line of its own, since the user's text may end with a comment.
        return f"({expression.rename(self.physical_names)}\n)"

    @property
    def physical_names(self) -> dict[str, str]:
        """Physical names by lower-case logical name, as expressions look them up."""
        return {name.lower(): physical for name, physical in self.columns.items()}


@dataclass(slots=True, eq=False)
class BranchedFrame:
    """A frame whose rows belong to several branches.

    Attributes:
        frame: The rows; with the column `BRANCH` if the frame is `shared`.
        names: Fresh physical column names, the same at every start of the query.
        has_coordinates: Its rows carry the coordinates of their source record.
        keeps_dropped: A dropped record stays as `RowKind.DROPPED`, for the watermarks of windows downstream.
        shared: It contains rows of several branches or kinds.
    """

    frame: DataFrame
    names: Iterator[str]
    has_coordinates: bool = field(kw_only=True)
    has_bad: bool = field(default=False, kw_only=True)
    has_markers: bool = field(default=False, kw_only=True)
    keeps_dropped: bool = field(default=False, kw_only=True)
    shared: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self.shared = self.shared or self.has_bad or self.has_markers or self.keeps_dropped

    def is_in(self, branch: Branch) -> str:
        """True for the rows of a branch."""
        return f"{BRANCH} = {branch.number}" if self.shared else "true"

    def rows_of(self, branch: Branch) -> DataFrame:
        """The rows of a branch, with the logical names of its columns."""
        frame = self.frame.where(self.is_in(branch)) if self.shared else self.frame
        return frame.selectExpr(*(f"{quote(now)} AS {quote(name)}" for name, now in branch.columns.items()))

    def compute(self, branch: Branch, new: Mapping[str, str], order: Sequence[str]) -> Branch:
        """Add computed columns; ``order`` names the columns of the resulting branch."""
        names = {column: next(self.names) for column in new}
        if self.shared:
            # Rows of other branches and kinds may hold values that this branch filters out: 1 / 0 fails.
            new = {
                column: f"CASE WHEN {self.is_in(branch)} THEN {value} END" for column, value in new.items()
            }
        self.frame = self.frame.selectExpr(
            "*", *(f"{new[column]} AS {name}" for column, name in names.items())
        )
        known = {**branch.physical_names, **{column.lower(): name for column, name in names.items()}}
        return replace(branch, columns={column: known[column.lower()] for column in order})

    def filter(self, branch: Branch, condition: str) -> None:
        """Drop the rows of a branch for which the condition is not true."""
        if self.keeps_dropped:
            gone = f"{self.is_in(branch)} AND NOT coalesce({condition}, false)"
            self.set({BRANCH: f"CASE WHEN {gone} THEN {RowKind.DROPPED} ELSE {BRANCH} END"})
            return
        self.frame = self.frame.where(
            f"NOT ({self.is_in(branch)}) OR ({condition})" if self.shared else condition
        )

    def split(self, branch: Branch, numbers: Sequence[int]) -> list[Branch]:
        """Copy each row of a branch into several branches."""
        copies = f"array({', '.join(map(str, numbers))})"
        if self.shared:
            copies = f"CASE WHEN {self.is_in(branch)} THEN {copies} ELSE array({BRANCH}) END"
        self.set({BRANCH: f"explode({copies})"})
        self.shared = True
        return [replace(branch, number=number) for number in numbers]

    def join(
        self, branch: Branch, right: DataFrame, on: Sequence[tuple[str, str]], how: str, step: str
    ) -> dict[str, str]:
        """Join a branch with a small static frame and return the columns of the right side.

        Rows of other branches match no row and stay. ``right`` may have the column `RECORD_ORDINAL`: the
        position of a row among the rows with the same key, from 0. ``step`` distinguishes the join in ids.
        """
        if how in ("semi", "anti"):
            right = right.selectExpr(*(quote(theirs) for _, theirs in on)).distinct()
        names = {column: next(self.names) for column in right.columns}
        hit = next(self.names)
        renamed = (f"{quote(column)} AS {name}" for column, name in names.items())
        small = F.broadcast(right.selectExpr(*renamed, f"true AS {hit}"))
        keys = {column.lower(): name for column, name in names.items()}
        equal = (f"{branch.column(mine)} = {keys[theirs.lower()]}" for mine, theirs in on)
        condition = F.expr(" AND ".join([self.is_in(branch), *equal]))
        self.frame = self.frame.join(small, condition, "left")
        if how in ("inner", "semi"):
            self.filter(branch, hit)
        elif how == "anti":
            self.filter(branch, f"{hit} IS NULL")
        if RECORD_ORDINAL in names and RECORD_ORDINAL in self.frame.columns:
            # The first match keeps the ordinal, so that an id does not depend on further matches.
            nth = names[RECORD_ORDINAL]
            suffix = f"CASE WHEN {nth} > 0 THEN {literal(f'.{step}-')} || {nth} ELSE '' END"
            self.set({RECORD_ORDINAL: f"{RECORD_ORDINAL} || {suffix}"})
        return {column: name for column, name in names.items() if column != RECORD_ORDINAL}

    def set(self, columns: Mapping[str, str]) -> None:
        """Replace columns, or add them."""
        self.frame = self.frame.withColumns({name: F.expr(text) for name, text in columns.items()})


def merge_frames(frames: Sequence[BranchedFrame]) -> BranchedFrame:
    """One frame with the rows of several; they are shared, or none of them is."""
    first, *others = frames
    if not others:
        return first
    merged = first.frame
    for branched in others:
        merged = merged.unionByName(branched.frame, allowMissingColumns=True)
    return BranchedFrame(
        merged,
        first.names,
        has_coordinates=any(branched.has_coordinates for branched in frames),
        has_bad=any(branched.has_bad for branched in frames),
        has_markers=any(branched.has_markers for branched in frames),
        keeps_dropped=any(branched.keeps_dropped for branched in frames),
        shared=first.shared,
    )


def unite(
    members: Sequence[tuple[BranchedFrame, Branch]],
    columns: Sequence[str],
    number: int,
    step: str,
    place: str,
) -> tuple[BranchedFrame, Branch]:
    """Unite branches of one or several frames in one branch; ``step`` distinguishes the union in ids.

    If some records have a place in a topic, and the others the id of an operator, all have an id: for the
    former it is the SQL text ``place``.
    """
    frames: list[BranchedFrame] = list(dict.fromkeys(branched for branched, _ in members))
    names = {column: next(frames[0].names) for column in columns}
    shared = any(branched.shared for branched in frames)
    have_places = [branched.has_coordinates and branch.has_coordinates for branched, branch in members]
    have_ids = [
        branch.has_record_id or place for (_, branch), place in zip(members, have_places, strict=True)
    ]
    with_ids = all(have_ids) and not all(have_places)
    for branched in frames:
        branches = [branch for owner, branch in members if owner is branched]
        branched.set(_merge(branched, branches, names, number, step, place if with_ids else None))
        if shared and not branched.shared:
            branched.set({BRANCH: str(number)})
            branched.shared = True
    return merge_frames(frames), Branch(
        number, names, has_coordinates=all(have_places), has_record_id=with_ids
    )


def _merge(  # noqa: PLR0917 - the branches, then the result
    branched: BranchedFrame,
    branches: Sequence[Branch],
    names: Mapping[str, str],
    number: int,
    step: str,
    place: str | None,
) -> dict[str, str]:
    *earlier, last = branches

    def choose(column: str) -> str:
        cases = (f"WHEN {branched.is_in(branch)} THEN {branch.column(column)}" for branch in earlier)
        return f"CASE {' '.join(cases)} ELSE {last.column(column)} END" if earlier else last.column(column)

    merged = {name: choose(column) for column, name in names.items()}
    if place is not None:
        others = RECORD_ID if RECORD_ID in branched.frame.columns else "CAST(NULL AS STRING)"
        cases = (
            f"WHEN {branched.is_in(branch)} THEN {RECORD_ID if branch.has_record_id else place}"
            for branch in branches
        )
        merged[RECORD_ID] = f"CASE {' '.join(cases)} ELSE {others} END"
    if earlier and RECORD_ORDINAL in branched.frame.columns:
        # A record that passed several branches becomes several records, each with its own id.
        places = enumerate(branches[1:], 1)
        cases = (f"WHEN {branched.is_in(branch)} THEN '.{step}-{nth}'" for nth, branch in places)
        merged[RECORD_ORDINAL] = f"{RECORD_ORDINAL} || CASE {' '.join(cases)} ELSE '' END"
    if branched.shared:
        numbers = ", ".join(str(branch.number) for branch in branches)
        merged[BRANCH] = f"CASE WHEN {BRANCH} IN ({numbers}) THEN {number} ELSE {BRANCH} END"
    return merged
