"""The control elements that a task sends to every key group, in a bounded number.

Each key group gets a copy of them, so a flood of forged elements must not pass. Elements of senders that do
not count are left out here. Of too many elements of a partition, only the last of each sender and kind are
sent, and the first status that makes the sender active: a watermark that takes effect later, or a channel
that is active for longer, makes no record late.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowcore.channels import MOST_SENDERS, channel_name
from flowcore.elements import StreamElement, Watermark, WatermarkStatus
from flowcore.keyed.control import Channel, ControlElement
from flowcore.keyed.offset_files import OffsetFiles

__all__ = ["SENDERS", "SenderFiles", "TaskElements", "count_ignored"]

SENDERS = "senders"
"""The folder in a checkpoint; it has one for each partition of a source that declares no channels."""
_MOST_ELEMENTS = 4096
"""The most elements of a partition in one task that keep their places."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SenderFiles:
    """The files in which tasks keep the senders that count.

    Attributes:
        checkpoint: The folder of the query's checkpoint.
        sources: The sources to which any sender may write.
    """

    checkpoint: str
    sources: frozenset[str]

    def of(self, channel: Channel) -> OffsetFiles:
        """The files of a partition."""
        return OffsetFiles(Path(self.checkpoint) / SENDERS / f"{channel.source}-{channel.partition}")


@dataclass(slots=True)
class _Senders:
    """The senders of a partition that count, while a task reads it.

    Attributes:
        names: Their channels, in the order of their first elements.
        ignored: How many elements were of other senders.
        changed_from: The offset after the last element that has changed the senders; None if none has.
    """

    files: OffsetFiles
    names: list[str]
    ignored: int
    changed_from: int | None = None

    @classmethod
    def read(cls, files: OffsetFiles, offset: int) -> _Senders:
        known = files.read(offset) or {"senders": [], "ignored": 0}
        return cls(files, known["senders"], known["ignored"])

    def counts(self, name: str, offset: int) -> bool:
        if name in self.names:
            return True
        self.changed_from = offset + 1
        if len(self.names) >= MOST_SENDERS:
            if not self.ignored:
                _log.warning(
                    "%s has more than %s senders of control elements: those of %r and of later ones do not "
                    "count; declare channels= of the source",
                    self.files.folder.name, MOST_SENDERS, name,
                )  # fmt: skip
            self.ignored += 1
            return False
        self.names.append(name)
        return True

    def write(self) -> None:
        if self.changed_from is not None:
            self.files.write(self.changed_from, {"senders": self.names, "ignored": self.ignored})


@dataclass(slots=True)
class TaskElements:
    """Collects the elements of a task; iterate over it for those that are sent.

    Attributes:
        files: The senders that count; None if all do.
    """

    files: SenderFiles | None = None
    _kept: list[ControlElement] = field(default_factory=list)
    _counts: dict[Channel, int] = field(default_factory=dict)
    _latest: dict[tuple[str, str, str, type[StreamElement[Any]]], ControlElement] = field(
        default_factory=dict
    )
    _activated: dict[tuple[str, str, str], ControlElement] = field(default_factory=dict)
    """By sender, the first status that makes it active, if a later status has replaced it."""
    _senders: dict[Channel, _Senders] = field(default_factory=dict)

    def __iter__(self) -> Iterator[ControlElement]:
        yield from self._kept
        yield from self._activated.values()
        yield from self._latest.values()

    def __bool__(self) -> bool:
        return bool(self._kept)

    def admits(self, channel: Channel, sender: str, offset: int) -> bool:
        """Whether an element of a sender counts; the elements of a partition are passed in order."""
        if self.files is None or not sender or channel.source not in self.files.sources:
            return True
        if channel not in self._senders:
            self._senders[channel] = _Senders.read(self.files.of(channel), offset)
        return self._senders[channel].counts(channel_name(channel.partition, sender), offset)

    def add(self, element: ControlElement) -> None:
        """Add an element that counts."""
        channel = Channel(element.source, element.partition)
        count = self._counts[channel] = self._counts.get(channel, 0) + 1
        if count <= _MOST_ELEMENTS:
            self._kept.append(element)
            return
        key = (*channel, element.sender, type(element.element))
        before = self._latest.get(key)
        if before is None or not _is_outdated(element.element, before.element):
            self._latest[key] = element
        if before is not None and before.element == WatermarkStatus(idle=False):
            self._activated.setdefault((*channel, element.sender), before)

    def write(self) -> None:
        """Keep the senders for later batches."""
        for each in self._senders.values():
            each.write()


def count_ignored(checkpoint: Path) -> dict[Channel, int]:
    """By partition, how many elements the tasks of a query have left out."""
    found = {}
    for folder in sorted((checkpoint / SENDERS).glob("*-*")):
        source, _, partition = folder.name.rpartition("-")
        known = OffsetFiles(folder).read(1 << 63)
        if known and known["ignored"]:
            found[Channel(source, partition)] = known["ignored"]
    return found


def _is_outdated(element: StreamElement[Any], before: StreamElement[Any]) -> bool:
    """Whether a watermark is not above one that its sender has sent before."""
    return (
        isinstance(element, Watermark)
        and isinstance(before, Watermark)
        and element.timestamp_ms <= before.timestamp_ms
    )
