"""Branches: several branches of a query, and rows of other kinds, share one frame.

Real-time mode reads a source once, so everything that is made of it stays in one frame. The column `BRANCH`
holds the number of the branch that a row belongs to, or its `RowKind`. An operator works on the rows of its
branch and passes all other rows on. Where branches part, each row is copied into all of them.

A computed column gets a new physical name, so that branches never disturb each other: a `Branch` maps the
logical names of its columns to physical names.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from flowcore.api.expressions import Expression
from flowcore.spark.frame.rows import BAD_COLUMNS, BRANCH, RECORD_ORDINAL, RowKind
from flowcore.spark.frame.sql import literal, quote, saturate_times
from flowcore.spark.frame.unparsed import UnparsedRows

__all__ = ["Branch", "BranchedFrame"]


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
        return f"({saturate_times(expression.rename(self.physical_names))}\n)"

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
        scattered: A join has distributed its rows: those of one channel may be in several tasks.
        unparsed: The rows of which Spark makes a frame, which need not be this one any more.
    """

    frame: DataFrame
    names: Iterator[str]
    has_coordinates: bool = field(kw_only=True)
    has_bad: bool = field(default=False, kw_only=True)
    has_markers: bool = field(default=False, kw_only=True)
    keeps_dropped: bool = field(default=False, kw_only=True)
    shared: bool = field(default=False, kw_only=True)
    scattered: bool = field(default=False, kw_only=True)
    unparsed: UnparsedRows | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self.shared = self.shared or self.has_bad or self.has_markers or self.keeps_dropped

    @property
    def unread(self) -> UnparsedRows | None:
        """The rows before Spark reads them, if the frame has all that is read of them, and nothing else."""
        rows = self.unparsed
        return rows if rows is not None and rows.parsed is self.frame else None

    def is_in(self, branch: Branch) -> str:
        """True for the rows of a branch."""
        return f"{BRANCH} = {branch.number}" if self.shared else "true"

    def rows_of(self, branch: Branch) -> DataFrame:
        """The rows of a branch, with the logical names of its columns."""
        frame = self.frame.where(self.is_in(branch)) if self.shared else self.frame
        return frame.selectExpr(*(f"{quote(now)} AS {quote(name)}" for name, now in branch.columns.items()))

    def compute(self, branch: Branch, new: Mapping[str, str], order: Sequence[str]) -> Branch:
        """Add computed columns; ``order`` names the columns of the resulting branch."""
        names, unread = {column: next(self.names) for column in new}, self.unread
        plain = {names[column]: text for column, text in new.items()}
        if self.shared:
            # Rows of other branches and kinds may hold values that this branch filters out: 1 / 0 fails.
            new = {
                column: f"CASE WHEN {self.is_in(branch)} THEN {value} END" for column, value in new.items()
            }
        self.frame = self.frame.selectExpr(
            "*", *(f"{new[column]} AS {name}" for column, name in names.items())
        )
        if unread is not None:
            self.unparsed = unread.compute(branch.number, plain, self.frame)
        known = {**branch.physical_names, **{column.lower(): name for column, name in names.items()}}
        return replace(branch, columns={column: known[column.lower()] for column in order})

    def choose(self, columns: Mapping[str, Mapping[int, str]]) -> None:
        """Add columns with another text in each branch, by its number; they are null in other rows."""
        unread = self.unread
        texts = {}
        for name, cases in columns.items():
            found = (f"WHEN {BRANCH} = {number} THEN {text}" for number, text in cases.items())
            texts[name] = f"CASE {' '.join(found)} END"
        self.set(texts)
        if unread is not None:
            self.unparsed = unread.choose(columns, self.frame)

    def set_in(self, branch: Branch, columns: Mapping[str, str]) -> None:
        """Replace columns in the rows of a branch."""
        unread = self.unread
        self.set(
            {
                name: f"CASE WHEN {self.is_in(branch)} THEN {text} ELSE {name} END"
                for name, text in columns.items()
            }
        )
        if unread is not None:
            cases = {name: {branch.number: text} for name, text in columns.items()}
            self.unparsed = unread.set_in_branches(cases, self.frame)

    def project(
        self, branch: Branch, expressions: Iterable[tuple[str, Expression]], order: Sequence[str], step: str
    ) -> Branch:
        """Add expressions as columns; plain columns keep their physical name.

        An expression that is not in ``order`` is left out, unless it generates rows. ``step`` distinguishes
        the rows of one record in ids.
        """
        known, used = branch.physical_names, {name.lower() for name in order}
        plain, computed = {}, {}
        for name, expression in expressions:
            bare = expression.text.strip("`").lower()
            if bare in known and len(expression.references) == 1:
                plain[name.lower()] = known[bare]
            elif expression.generates and (exploded := expression.exploded):
                plain[name.lower()] = self._explode(branch, *exploded, step)
            elif name.lower() in used:
                computed[name] = branch.expression(expression)
        after = self.compute(branch, computed, list(computed)).physical_names if computed else {}
        names = {**known, **plain, **after}
        return replace(branch, columns={name: names[name.lower()] for name in order})

    def _explode(self, branch: Branch, array: Expression, outer: bool, step: str) -> str:
        """Copy each row of a branch for each element of an array, and return the column of the elements.

        ``outer`` keeps the rows whose array is null or empty.
        """
        nth, element = next(self.names), next(self.names)
        # Rows of other branches have no array, and stay as they are.
        text = f"CASE WHEN {self.is_in(branch)} THEN {branch.expression(array)} END"
        self.frame = self.frame.selectExpr("*", f"posexplode_outer({text}) AS ({nth}, {element})")
        if not outer:
            self.filter(branch, f"{nth} IS NOT NULL")
        self._distinguish(nth, step)
        return element

    def _distinguish(self, nth: str, step: str) -> None:
        """Make the ordinals of rows that were made of one row distinct, by a column that counts them from 0.

        The first row keeps its ordinal, so that its id does not depend on the other rows.
        """
        if RECORD_ORDINAL in self.frame.columns:
            suffix = f"CASE WHEN {nth} > 0 THEN {literal(f'.{step}-')} || {nth} ELSE '' END"
            self.set({RECORD_ORDINAL: f"{RECORD_ORDINAL} || {suffix}"})

    def filter(self, branch: Branch, condition: str) -> None:
        """Drop the rows of a branch for which the condition is not true."""
        unread = self.unread
        if self.keeps_dropped:
            gone = f"{self.is_in(branch)} AND NOT coalesce({condition}, false)"
            self.set({BRANCH: f"CASE WHEN {gone} THEN {RowKind.DROPPED} ELSE {BRANCH} END"})
        else:
            others = f"NOT ({self.is_in(branch)}) OR " if self.shared else ""
            self.frame = self.frame.where(f"{others}({condition})")
        if unread is not None:
            drops = not self.keeps_dropped
            self.unparsed = unread.filter(branch.number, condition, self.frame, drops=drops)

    def split(self, branch: Branch, numbers: Sequence[int]) -> list[Branch]:
        """Copy each row of a branch into several branches."""
        copies = f"array({', '.join(map(str, numbers))})"
        if self.shared:
            copies = f"CASE WHEN {self.is_in(branch)} THEN {copies} ELSE array({BRANCH}) END"
        self.set({BRANCH: f"explode({copies})"})
        self.shared = True
        return [replace(branch, number=number) for number in numbers]

    def join(
        self,
        branch: Branch,
        right: DataFrame,
        on: Sequence[tuple[str, str]],
        how: str,
        step: str,
        *,
        shuffles: bool = False,
    ) -> dict[str, str]:
        """Join a branch with a static frame and return the columns of the right side.

        Rows of other branches match no row and stay. ``right`` may have the column `RECORD_ORDINAL`: the
        position of a row among the rows with the same key, from 0. ``step`` distinguishes the join in ids.
        ``shuffles`` is for a frame that does not fit in memory.
        """
        if how in ("semi", "anti"):
            right = right.selectExpr(*(quote(theirs) for _, theirs in on)).distinct()
        names = {column: next(self.names) for column in right.columns}
        hit = next(self.names)
        renamed = (f"{quote(column)} AS {name}" for column, name in names.items())
        # Without a hint Spark decides by its own estimate of the size, which real-time mode does not allow.
        table = right.selectExpr(*renamed, f"true AS {hit}").hint("merge" if shuffles else "broadcast")
        keys = {column.lower(): name for column, name in names.items()}
        equal = (f"{branch.column(mine)} = {keys[theirs.lower()]}" for mine, theirs in on)
        condition = F.expr(" AND ".join([self.is_in(branch), *equal]))
        self.frame = self.frame.join(table, condition, "left")
        self.scattered = self.scattered or shuffles
        if how in ("inner", "semi"):
            self.filter(branch, hit)
        elif how == "anti":
            self.filter(branch, f"{hit} IS NULL")
        if RECORD_ORDINAL in names:
            self._distinguish(names[RECORD_ORDINAL], step)
        return {column: name for column, name in names.items() if column != RECORD_ORDINAL}

    def share(self, branch: Branch) -> None:
        """Number the rows of its only branch, so that they can be merged with other rows."""
        if not self.shared:
            self.set({BRANCH: str(branch.number)})
            self.shared = True

    def add_bad(self, branch: Branch) -> None:
        """Add the columns of bad rows that it lacks, so that rows of a branch may become bad."""
        self.share(branch)
        existing = {*self.frame.columns}
        missing = {name: kind for name, kind in BAD_COLUMNS.items() if name not in existing}
        self.set({name: f"CAST(NULL AS {kind})" for name, kind in missing.items()})
        self.has_bad = True

    def set(self, columns: Mapping[str, str]) -> None:
        """Replace columns, or add them."""
        self.frame = self.frame.withColumns({name: F.expr(text) for name, text in columns.items()})
