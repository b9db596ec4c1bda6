"""The branches that no operator has read yet, and the frames in which they are."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flowcore.api.operators import Operator
from flowcore.planner.rules.record_labels import number_members
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.rows import BRANCH, RECORD_ID, RECORD_ORDINAL
from flowcore.spark.frame.unparsed import UnparsedRows

__all__ = ["OpenBranches"]


@dataclass(frozen=True, slots=True)
class OpenBranches:
    """The branches that no reader has taken yet.

    Attributes:
        numbers: The numbers of new branches.
        columns: The columns of each operator's output that are used.
        waiting: The branches, by the operator whose output they are.
    """

    numbers: Iterator[int]
    columns: Mapping[Operator, Sequence[str]]
    waiting: dict[Operator, list[tuple[BranchedFrame, Branch]]] = field(default_factory=dict)

    def add(self, output: Operator, branched: BranchedFrame, branch: Branch, readers: int) -> None:
        """Keep the output of an operator, with a branch for each of its readers."""
        branches = [branch]
        if readers > 1:
            branches = branched.split(branch, [next(self.numbers) for _ in range(readers)])
        self.waiting[output] = [(branched, each) for each in branches]

    def take(self, output: Operator) -> tuple[BranchedFrame, Branch]:
        """A branch of an output."""
        return self.waiting[output].pop()

    def logical_names(self, outputs: Iterable[Operator]) -> Mapping[str, str]:
        """The user's names of the columns of outputs, by their physical names."""
        waiting = (branch for output in outputs for _, branch in self.waiting.get(output, ()))
        return {physical: name for branch in waiting for name, physical in branch.columns.items()}

    @property
    def rest(self) -> list[tuple[BranchedFrame, Branch]]:
        """The branches that are left."""
        return [each for waiting in self.waiting.values() for each in waiting]

    def merge(self, outputs: Iterable[Operator]) -> tuple[BranchedFrame, Mapping[Operator, Branch]]:
        """A branch of each output, in one frame."""
        taken = {output: self.take(output) for output in dict.fromkeys(outputs)}
        frames = dict.fromkeys(branched for branched, _ in taken.values())
        if len(frames) > 1:
            for branched, branch in taken.values():
                branched.share(branch)
        return self._merge([*frames]), {output: branch for output, (_, branch) in taken.items()}

    def unite(self, node: Operator, step: str, place: str) -> tuple[BranchedFrame, Branch]:
        """Unite branches of the operator's inputs in one branch; ``step`` distinguishes the union in ids.

        If some records have an id, and others only a place in a topic, all get an id: from a place by the SQL
        text ``place``.
        """
        number, members = next(self.numbers), [self.take(parent) for parent in node.inputs]
        frames: list[BranchedFrame] = list(dict.fromkeys(branched for branched, _ in members))
        names = {column: next(frames[0].names) for column in self.columns[node]}
        shared = any(branched.shared for branched in frames)
        have_places = [branched.has_coordinates and branch.has_coordinates for branched, branch in members]
        have_ids = [
            branch.has_record_id or has_place
            for (_, branch), has_place in zip(members, have_places, strict=True)
        ]
        with_ids = all(have_ids) and any(branch.has_record_id for _, branch in members)
        numbered = number_members(node.inputs, [branched for branched, _ in members])
        for branched in frames:
            mine = [
                (branch, nth)
                for (owner, branch), nth in zip(members, numbered, strict=True)
                if owner is branched
            ]
            branched.set(_unite(branched, mine, names, number, step, place if with_ids else None))
            if shared and not branched.shared:
                branched.set({BRANCH: str(number)})
                branched.shared = True
        return self._merge(frames), Branch(
            number, names, has_coordinates=all(have_places), has_record_id=with_ids
        )

    def columns_in(self, frame: BranchedFrame) -> Mapping[int, Sequence[str]]:
        """The columns that are used of a frame's branches, by number of the branch."""
        return {
            branch.number: [branch.physical_names[name.lower()] for name in self.columns[output]]
            for output, waiting in self.waiting.items()
            for branched, branch in waiting
            if branched is frame
        }

    def outputs_in(self, frame: BranchedFrame) -> list[Operator]:
        """The operators whose output has a branch in a frame that no reader has taken."""
        return [
            output
            for output, waiting in self.waiting.items()
            if any(branched is frame for branched, _ in waiting)
        ]

    def _merge(self, frames: Sequence[BranchedFrame]) -> BranchedFrame:
        """One frame with the rows of several; they are shared, or none of them is."""
        first, *others = frames
        unread = [rows for branched in frames if (rows := branched.unread) is not None]
        for branched in others:
            first.frame = first.frame.unionByName(branched.frame, allowMissingColumns=True)
            first.has_coordinates = first.has_coordinates or branched.has_coordinates
            first.has_bad = first.has_bad or branched.has_bad
            first.has_markers = first.has_markers or branched.has_markers
            first.keeps_dropped = first.keeps_dropped or branched.keeps_dropped
            first.scattered = first.scattered or branched.scattered
        if others and len(unread) == len(frames):
            first.unparsed = UnparsedRows.unite(unread, first.frame)
        # A merged frame also has the other branches of the same sources.
        for output, waiting in self.waiting.items():
            self.waiting[output] = [(first if owner in others else owner, each) for owner, each in waiting]
        return first


def _unite(  # noqa: PLR0917 - the branches, then the result
    branched: BranchedFrame,
    members: Sequence[tuple[Branch, int]],
    names: Mapping[str, str],
    number: int,
    step: str,
    place: str | None,
) -> dict[str, str]:
    branches = [branch for branch, _ in members]
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
    later = [(branch, nth) for branch, nth in members if nth > 0]
    if later and RECORD_ORDINAL in branched.frame.columns:
        # A record that passed several branches becomes several records, each with its own id.
        cases = (f"WHEN {branched.is_in(branch)} THEN '.{step}-{nth}'" for branch, nth in later)
        merged[RECORD_ORDINAL] = f"{RECORD_ORDINAL} || CASE {' '.join(cases)} ELSE '' END"
    if branched.shared:
        numbers = ", ".join(str(branch.number) for branch in branches)
        merged[BRANCH] = f"CASE WHEN {BRANCH} IN ({numbers}) THEN {number} ELSE {BRANCH} END"
    return merged
