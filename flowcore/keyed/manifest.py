"""Manifests: which segments lead to the state of a key group, and which state is it?

A step leaves a new *state*: a number one higher, and a random mark that no other attempt at the same step
leaves. A worker that remembers a state by number and mark goes on from it if it is still in the log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.errors import StateError

__all__ = ["MANIFEST_VERSION", "SegmentRef", "StateManifest", "StatePosition"]

MANIFEST_VERSION = 1
_REMEMBERED = 32


@dataclass(frozen=True, slots=True)
class StatePosition:
    """Which state it is.

    Attributes:
        number: How many steps led to it.
        mark: Tells it from the same step tried again.
    """

    number: int = 0
    mark: str = ""


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A segment in the store.

    Attributes:
        segment: Its number.
        size_bytes: Its size.
        leads_to: The number of the state that it leads to.
    """

    segment: int
    size_bytes: int
    leads_to: int


@dataclass(slots=True, kw_only=True)
class StateManifest:
    """What is known of a key group without its segments.

    Attributes:
        layout: What is kept, as the operator calls it.
        key_groups: How many groups there are.
        positions: The state, and those that led to it, as far as they are remembered; the oldest first.
        snapshot: The pieces of the last snapshot; none where nothing was kept.
        snapshot_leads_to: The number of the state that it leads to.
        deltas: What followed it, oldest first.
        next_segment: A number that was never used.
        event_time: How far event time has come, and by which inputs.
        header: The operator's.
        backlog: What its operator was told of its records last: they are history; None if it was not told.
        wake_ms: The time of the clock at which it will be woken; None if it will not.
        counters: How often things happened, ever.
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
    backlog: bool | None = None
    wake_ms: int | None = None
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def position(self) -> StatePosition:
        """The state."""
        return self.positions[-1] if self.positions else StatePosition()

    def advance(self, mark: str) -> None:
        """There is a new state."""
        self.positions = [*self.positions[1 - _REMEMBERED :], StatePosition(self.position.number + 1, mark)]

    @property
    def snapshot_bytes(self) -> int:
        """Size of the last snapshot."""
        return sum(piece.size_bytes for piece in self.snapshot)

    @property
    def delta_bytes(self) -> int:
        """Size of what followed it."""
        return sum(delta.size_bytes for delta in self.deltas)

    def sizes(self) -> dict[str, int]:
        """What can be watched of it: bytes in the store, how far event time has come, backlog (0 or 1)."""
        watermark_ms = self.event_time.get("merged", {}).get("watermark_ms", MIN_TIMESTAMP_MS)
        known = {} if self.backlog is None else {"backlog": int(self.backlog)}
        return {"state_bytes": self.snapshot_bytes + self.delta_bytes, "watermark_ms": watermark_ms, **known}

    def encode(self) -> bytes:
        """As JSON."""
        fields = asdict(self)
        # The JSON key of the layout is "form", as checkpoints have it.
        written = {"version": MANIFEST_VERSION, "form": fields.pop("layout"), **fields}
        return json.dumps(written, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, written: bytes, *, layout: str, key_groups: int) -> StateManifest:
        """From JSON, to go on from it.

        Raises:
            StateError: It is of another version, another operator, or another number of key groups.
        """
        found = cls.read(written)
        for name, before, now in (
            ("layout", found.layout, layout),
            ("key_groups", found.key_groups, key_groups),
        ):
            if before != now:
                msg = (
                    f"the checkpoint's state has {name}={before!r}, the flow asks for {now!r}: "
                    "its keys would not be found again; change it back, or start a new checkpoint "
                )
                raise StateError(msg)
        return found

    @classmethod
    def read(cls, written: bytes) -> StateManifest:
        """From JSON, whatever operator it is of.

        Raises:
            StateError: It is of another version.
        """
        fields = json.loads(written)
        version = fields.pop("version", None)
        if version != MANIFEST_VERSION:
            msg = (
                f"state of version {version!r}, this flowcore reads {MANIFEST_VERSION}: its content would be "
                "misread; run the flowcore that wrote it, or start a new checkpoint"
            )
            raise StateError(msg)
        for name in ("snapshot", "deltas"):
            fields[name] = [SegmentRef(**entry) for entry in fields[name]]
        positions = [StatePosition(**entry) for entry in fields.pop("positions")]
        return cls(layout=fields.pop("form"), positions=positions, **fields)
