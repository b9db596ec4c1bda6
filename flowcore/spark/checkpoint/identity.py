"""Identity of a checkpoint: the topics, the bounded results and the folder that a plan file belongs to.

Offsets count the records of one topic of one cluster. A topic that was deleted and created again has the same
name and other records, so Kafka's ids are compared. The folder is known by the id that Spark keeps in it.
"""

from __future__ import annotations

import json
import shlex
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Self

from flowcore.delivery import LedgerTerms
from flowcore.kafka.topics import TopicIdentity
from flowcore.stored_json import read_json

__all__ = ["CheckpointIdentity", "create_checkpoint", "find_topic_differences", "read_id", "start_anew"]

_METADATA = "metadata"
_MOST = 1 << 45
"""Milliseconds of a thousand years, and more batches than any query has."""
_FILES = ("", ".plan.json", ".backlog", ".history")


@dataclass(frozen=True, slots=True)
class CheckpointIdentity:
    """What a checkpoint belongs to.

    Attributes:
        checkpoint: The id of its folder.
        born_ms: When it was created, in milliseconds since the epoch, UTC.
        depth: The number of exchanges between operators with state.
        topics: The topics that it has offsets of, by name.
        bounded: The version of each bounded result that its last batch joins, by stage.
        mode: The mode of the last start; ``realtime`` also while it reads records again that a real-time
            batch may have processed.
        lags: Its last batch is backlog; only if a function asks.
        ledger: The terms of its ledger, None if its outputs are delivered at least once.
        series: That of its last ledger, whose entries stay while its outputs are delivered at least once.
    """

    checkpoint: str
    born_ms: int
    depth: int
    topics: Mapping[str, TopicIdentity]
    bounded: Mapping[str, str]
    mode: str = ""
    lags: bool = False
    ledger: LedgerTerms | None = None
    series: int = 0

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> Self:
        """Read it from JSON-able data.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: The data is something else.
        """
        topics = {name: TopicIdentity(**topic) for name, topic in found["topics"].items()}
        ledger = LedgerTerms(**found["ledger"]) if found.get("ledger") else None
        made = cls(**{**found, "topics": topics, "ledger": ledger})
        numbers = (made.born_ms, made.depth, made.series, *(astuple(ledger) if ledger else ()))
        if not all(type(number) is int and 0 <= number < _MOST for number in numbers):
            msg = f"a number is none: {', '.join(str(number)[:30] for number in numbers)}"
            raise ValueError(msg)
        return made

    def __str__(self) -> str:
        born = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.born_ms / 1000))
        return f"{self.checkpoint}, created on {born} UTC"


def find_topic_differences(
    before: Mapping[str, TopicIdentity], now: Mapping[str, TopicIdentity | None]
) -> Iterator[str]:
    """Why offsets of topics cannot be used: each topic as it was, and as it is now."""
    for name, old in before.items():
        new = now.get(name, old)
        if new is None:
            yield f"topic {name!r} (id {old.id}) does not exist any more"
        elif new.cluster != old.cluster:
            yield f"topic {name!r} was in the cluster {old.cluster}, and now is in the cluster {new.cluster}"
        elif old.id and new.id and new.id != old.id:
            yield f"topic {name!r} was deleted and created again: its id was {old.id}, and now is {new.id}"
        elif new.partitions < old.partitions:
            yield f"topic {name!r} had {old.partitions} partitions, and now has {new.partitions}"


def read_id(checkpoint: Path) -> str | None:
    """The id of a checkpoint's folder; None if the folder or the id is missing."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(read_json(checkpoint / _METADATA)["id"])
    return None


def create_checkpoint(checkpoint: Path) -> str:
    """Create the folder of a checkpoint if it does not exist; returns its id, which Spark keeps."""
    if (known := read_id(checkpoint)) is not None:
        return known
    created = str(uuid.uuid4())
    checkpoint.mkdir(parents=True, exist_ok=True)
    part = checkpoint / f".{_METADATA}.part"
    part.write_text(json.dumps({"id": created}))
    part.replace(checkpoint / _METADATA)
    return created


def start_anew(checkpoints: Iterable[Path]) -> str:
    """The command that removes checkpoints and the files beside them, to start anew."""
    paths = (each.with_name(each.name + kind) for each in checkpoints for kind in _FILES)
    found = [path for path in paths if path.exists()]
    return f"rm -r {' '.join(shlex.quote(str(path)) for path in found)}"
