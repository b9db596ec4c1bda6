"""The manifest of an operator in a key group: the position of its state, and the segments that contain it.

A step advances the position: its number grows by one, and its random mark differs from that of every other
attempt at the step. A worker can reuse a cached state if its position is still in the manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.errors import StateError
from flowcore.keyed.versions import require_version

__all__ = ["MANIFEST_VERSION", "SegmentRef", "StateManifest", "StatePosition"]

MANIFEST_VERSION = 4
_REMEMBERED = 32


@dataclass(frozen=True, slots=True)
class StatePosition:
    """Identifies a state.

    Attributes:
        number: The number of steps before it.
        mark: Differs between attempts at the same step.
    """

    number: int = 0
    mark: str = ""


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A segment in the store.

    Attributes:
        leads_to: The number of the state after it is applied.
    """

    segment: int
    size_bytes: int
    leads_to: int


@dataclass(slots=True, kw_only=True)
class StateManifest:
    """The description of an operator's state in a key group, except its segments.

    Attributes:
        positions: The current position and the last ones before it, oldest first.
        snapshot: The pieces of the last snapshot, if any.
        snapshot_leads_to: The number of the state in the snapshot.
        deltas: The deltas after it, oldest first.
        next_segment: A number that was never used.
        wake_ms: The processing time of its next step without input; None if there is none.
        counters: Numbers of events since the beginning.
    """

    layout: str
    key_groups: int
    positions: list[StatePosition] = field(default_factory=list)
    snapshot: list[SegmentRef] = field(default_factory=list)
    snapshot_leads_to: int = 0
    deltas: list[SegmentRef] = field(default_factory=list)
    next_segment: int = 0
    event_time: Mapping[str, Any] = field(default_factory=dict)
    header: Mapping[str, Any] = field(default_factory=dict)
    backlog: Mapping[str, Any] = field(default_factory=dict)
    wake_ms: int | None = None
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def position(self) -> StatePosition:
        """The current position."""
        return self.positions[-1] if self.positions else StatePosition()

    def advance(self, mark: str) -> None:
        """Add a new position."""
        self.positions = [*self.positions[1 - _REMEMBERED :], StatePosition(self.position.number + 1, mark)]

    @property
    def snapshot_bytes(self) -> int:
        """Size of the last snapshot."""
        return sum(piece.size_bytes for piece in self.snapshot)

    @property
    def delta_bytes(self) -> int:
        """Size of the deltas after it."""
        return sum(delta.size_bytes for delta in self.deltas)

    def sizes(self) -> dict[str, int]:
        """Metrics: bytes in the store, the watermark, and the backlog status as 0 or 1."""
        watermark_ms = self.event_time.get("merged", {}).get("watermark_ms", MIN_TIMESTAMP_MS)
        backlog = self.backlog.get("backlog")
        known = {} if backlog is None else {"backlog": int(backlog)}
        return {"state_bytes": self.snapshot_bytes + self.delta_bytes, "watermark_ms": watermark_ms, **known}

    def encode(self) -> dict[str, Any]:
        """As JSON-able data."""
        written: dict[str, Any] = {
            "version": MANIFEST_VERSION,
            **{each.name: getattr(self, each.name) for each in fields(self)},
        }
        for name in ("positions", "snapshot", "deltas"):
            written[name] = [asdict(each) for each in written[name]]
        return written

    @classmethod
    def decode(cls, written: Mapping[str, Any], *, layout: str, key_groups: int) -> StateManifest:
        """Parse the manifest of this operator.

        Raises:
            StateError: The manifest has another version, layout or number of key groups.
        """
        found = cls.read(written)
        for name, before, now in (
            ("layout", found.layout, layout),
            ("key_groups", found.key_groups, key_groups),
        ):
            if before != now:
                msg = (
                    f"the checkpoint's state has {name}={before!r}, the flow requires {now!r}: its keys "
                    "would not be found; change it back, or start a new checkpoint"
                )
                raise StateError(msg)
        return found

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> StateManifest:
        """Parse the manifest of any operator.

        Raises:
            StateError: The manifest has another version.
        """
        found = dict(written)
        require_version("state", found.pop("version", None), MANIFEST_VERSION)
        for name in ("snapshot", "deltas"):
            found[name] = [SegmentRef(**entry) for entry in found[name]]
        found["positions"] = [StatePosition(**entry) for entry in found["positions"]]
        return cls(**found)
