"""Joins of two streams whose partners are chosen as they arrive, not by event time."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import ClassVar, Literal

from flowcore.api.connectors import ADDED_LATER
from flowcore.api.decisions import Decision, Obstacle
from flowcore.api.event_time_operator import emitted_by_watermark
from flowcore.api.retraction import CHANGE_COLUMN, ChangelogNormalize
from flowcore.api.stateful import IS_DELETED
from flowcore.api.stream_joins import StreamJoin, join_types, show_length

__all__ = ["ROW_ID", "JoinLatest", "JoinRegular"]

ROW_ID = "row_id"
"""The column before `IS_DELETED` in the output of an updating regular join: the key of a row."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class JoinLatest(StreamJoin):
    """The partner of a left record is the right one that arrived last; ``how`` is ``inner`` or ``left``.

    Attributes:
        load: When the right side is loaded: when the watermark reaches this time in milliseconds, or for
            ``"caught-up"`` the time at which the query began. None for at once.
        ttl_ms: How long a right record is kept after its arrival, in processing time; None for ever.
        deleted: The right column that is true where a record deletes its key; it is not in the output.
    """

    state_kind: ClassVar[str] = "latest-join"

    load: Literal["caught-up"] | int | None
    ttl_ms: int | None
    deleted: str | None = field(default=None, metadata=ADDED_LATER)

    def reads(self, used: Collection[str]) -> Collection[str]:
        return {*StreamJoin.reads(self, used), *([self.deleted] if self.deleted else [])}

    def stored_columns(self, used: Collection[str]) -> tuple[str, ...]:
        return (*StreamJoin.stored_columns(self, used), *([self.deleted] if self.deleted else []))

    @property
    def partners(self) -> str:
        deleted = "" if self.deleted is None else f", none where {self.deleted}"
        return f"newest right on arrival{deleted}"

    @property
    def retention(self) -> str:
        left = "" if self.load is None else "left records until the right side is loaded, and "
        return f"it keeps {left}the newest right record of each key {_kept(self.ttl_ms)}"

    def own_emission(self) -> Decision:
        if self.load is None:
            return Decision("when a left record arrives", ("load=None does not wait for the right side",))
        time = "the start of the query"
        if isinstance(self.load, int):
            time = datetime.fromtimestamp(self.load / 1000, UTC).isoformat()
        why = f"before the watermark of both sides reaches {time}, left records wait for the right side"
        return emitted_by_watermark(self, "when a left record arrives, once the right side is loaded", why)

    def unbounded_state(self) -> Decision | None:
        if self.ttl_ms is not None:
            return None
        change = f"declare ttl= of {self.name}, a time after which a right record counts no more"
        return Decision(
            "unbounded", ("ttl=None keeps the newest right record of every key for ever",), (change,)
        )

    def late_records(self) -> Decision | None:
        return None

    def checkpoint_obstacle(self) -> Obstacle:
        return Obstacle("it emits as soon as a left record has arrived")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class JoinRegular(StreamJoin):
    """Partners may arrive at any time while both are kept.

    If it emits unmatched records, they are deleted when a partner arrives. If an input is a changelog, rows
    are deleted that are made of a row that is taken back. In both cases it is updating by `ROW_ID`, and its
    last column `IS_DELETED` is true where a row is deleted.

    Attributes:
        ttl_ms: How long a record is kept after its arrival, in processing time; None for ever.
    """

    state_kind: ClassVar[str] = "regular-join"
    has_timestamps = False

    ttl_ms: int | None

    @property
    def changelogs(self) -> tuple[ChangelogNormalize | None, ChangelogNormalize | None]:
        """The inputs whose rows may be taken back."""
        left, right = (each if isinstance(each, ChangelogNormalize) else None for each in self.inputs)
        return left, right

    def describe(self) -> str:
        taken = [each.inputs[0].name for each in self.changelogs if each]
        return StreamJoin.describe(self) + (f", takes rows of {' and '.join(taken)} back" if taken else "")

    def reads(self, used: Collection[str]) -> Collection[str]:
        own = {ROW_ID, IS_DELETED} if self.updating else set()
        named = (column for each in self.changelogs if each for column in (*each.by, CHANGE_COLUMN))
        return {*StreamJoin.reads(self, {*used} - own), *named}

    def side_columns(self, side: int, used: Collection[str]) -> list[str]:
        own = {ROW_ID, IS_DELETED} if self.updating else set()
        return [name for name in StreamJoin.side_columns(self, side, used) if name not in own]

    @property
    def partners(self) -> str:
        kept = "for ever" if self.ttl_ms is None else f"{show_length(self.ttl_ms)} after arrival"
        return f"each record kept {kept}"

    @property
    def retention(self) -> str:
        return f"it keeps the records of both sides {_kept(self.ttl_ms)}"

    def state_values(self) -> str:
        sides = zip(("left", "right"), self.changelogs, strict=True)
        named = [
            f" ({side} rows replaced by {', '.join(each.by) or 'nothing'})" for side, each in sides if each
        ]
        return f"rows of both sides, {self.how}, in processing time{''.join(named)}"

    def types(self) -> Mapping[str, str]:
        return join_types(self) | ({ROW_ID: "STRING", IS_DELETED: "BOOLEAN"} if self.updating else {})

    def own_emission(self) -> Decision:
        if not self.updating:
            return StreamJoin.own_emission(self)
        why = "an unmatched record is emitted at once, and deleted when its first partner arrives"
        if any(self.changelogs):
            why = "a row that is taken back deletes the rows that are made of it"
        return Decision("when a record arrives", (why,))

    def unbounded_state(self) -> Decision | None:
        if self.ttl_ms is not None:
            return None
        change = f"declare ttl= of {self.name}, a time after which no partner comes"
        return Decision("unbounded", ("ttl=None keeps every record of both sides for ever",), (change,))

    def late_records(self) -> Decision | None:
        return None

    def flush_obstacle(self) -> Obstacle:
        return (
            Obstacle("each row that it deletes counts") if self.updating else StreamJoin.flush_obstacle(self)
        )

    def checkpoint_obstacle(self) -> Obstacle:
        return Obstacle("it emits a pair as soon as both records have arrived")

    @property
    def needs_timestamps(self) -> bool:
        return False


def _kept(ttl_ms: int | None) -> str:
    return "for ever" if ttl_ms is None else f"for {show_length(ttl_ms)} of processing time"
