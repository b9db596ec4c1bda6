"""Checkpoints: what was a checkpoint made by, and may this plan go on from it?

Beside each checkpoint folder lies ``<query>.plan.json``, written before the query's first batch: the
format of the file, what the plan needs (`flowcore.planner.rules.compatibility`), and the types of what Spark
keeps. A plan that needs something else is refused before it has written anything.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flowcore.api.node import KeptState
from flowcore.api.operators import topic_of
from flowcore.errors import StateError
from flowcore.planner.model import LiveQuery
from flowcore.planner.plan import Plan
from flowcore.planner.rules.compatibility import CheckpointNeeds, derive_needs, differences
from flowcore.settings import Settings

__all__ = [
    "StateTypes",
    "checkpoint_folder",
    "checkpointed_topics",
    "clear_unused_log",
    "plan_file_of",
    "require_checkpoints_fit",
    "require_fit",
    "write_plan_file",
]

_log = logging.getLogger(__name__)

_FORMAT = 1

StateTypes = Mapping[str, tuple[str, ...]]
"""Of each operator with state, the types of what Spark keeps."""


@dataclass(frozen=True, slots=True)
class _Record:
    flow: str
    query: str
    needs: CheckpointNeeds
    types: tuple[tuple[str, tuple[str, ...]], ...]


def checkpoint_folder(query: LiveQuery, flow: str, settings: Settings) -> Path:
    """The folder of a query's checkpoint."""
    return settings.state_dir.absolute() / flow / "checkpoints" / query.name


def plan_file_of(checkpoint: Path) -> Path:
    """The file that says what a checkpoint was made by."""
    return checkpoint.with_name(f"{checkpoint.name}.plan.json")


def require_checkpoints_fit(plan: Plan, settings: Settings) -> None:
    """Check that every query of a plan may go on from its checkpoint; needs neither Spark nor a broker.

    Raises:
        StateError: One cannot; the message shows what was and what is, and what may be done.
    """
    for query in plan.live.queries if plan.live else ():
        require_fit(query, plan.flow, checkpoint_folder(query, plan.flow, settings))


def require_fit(query: LiveQuery, flow: str, checkpoint: Path, types: StateTypes | None = None) -> None:
    """Check that a query may go on from a checkpoint.

    Args:
        query: The query as it is planned now.
        flow: Its flow.
        checkpoint: Where it was, if it was there before.
        types: Of what Spark keeps, where that is known already.

    Raises:
        StateError: It cannot.
    """
    if not _batches(checkpoint):
        return
    path = plan_file_of(checkpoint)
    found = tuple(
        _unlike(_read(path), query, flow, types) if path.exists() else _unlike_offsets(query, checkpoint)
    )
    if found:
        msg = (
            f"query {query.name!r} of flow {flow!r} cannot go on from its checkpoint {checkpoint}: "
            f"{'; '.join(found)}: what it has kept would be taken for something else; go back to the flow "
            f"that made it, or start anew: with another state.dir, with another name for {query.name!r}, or "
            f"after you have deleted {checkpoint} and {path.name}"
        )
        raise StateError(msg)


def write_plan_file(query: LiveQuery, flow: str, checkpoint: Path, types: StateTypes) -> None:
    """Write what a checkpoint is made by; to be called when it has been checked, before the query starts."""
    path = plan_file_of(checkpoint)
    if _batches(checkpoint) and not path.exists():
        _log.warning(
            "checkpoint %s was made before flowcore wrote down what by; it is taken to be of this plan",
            checkpoint,
        )
    needs = derive_needs(query)
    content = {
        "format": _FORMAT,
        "flow": flow,
        "query": query.name,
        "fingerprint": needs.fingerprint,
        **asdict(needs),
        "types": [[name, list(kinds)] for name, kinds in types.items()],
    }
    part = path.with_name(f".{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    with part.open("w") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def checkpointed_topics(checkpoint: Path) -> set[str]:
    """The topics that a checkpoint has offsets of, companion topics included."""
    latest = max(_batches(checkpoint), default=None)
    if latest is None:
        return set()
    found: set[str] = set()
    for line in (checkpoint / "offsets" / str(latest)).read_text().splitlines()[2:]:
        offsets = json.loads(line) if line.startswith("{") else {}
        found.update(topic for topic, each in offsets.items() if isinstance(each, Mapping))
    return found


def clear_unused_log(checkpoint: Path) -> None:
    """Remove what a run left that was ended before its first batch was planned.

    Half a file in the log of offsets is enough for Spark to refuse the checkpoint for ever.
    """
    offsets = checkpoint / "offsets"
    if offsets.exists() and not _batches(checkpoint):
        for file in offsets.iterdir():
            file.unlink()


def _batches(checkpoint: Path) -> list[int]:
    """The numbers of the batches that a checkpoint knows; none if it was never used."""
    return [int(file.name) for file in (checkpoint / "offsets").glob("*") if file.name.isdigit()]


def _unlike(before: _Record, query: LiveQuery, flow: str, types: StateTypes | None) -> Iterator[str]:
    if (before.flow, before.query) != (flow, query.name):
        yield f"it is of query {before.query!r} of flow {before.flow!r}"
    yield from differences(before.needs, derive_needs(query))
    if types is None:
        return
    old, new = dict(before.types), dict(types)
    if list(old.values()) != list(new.values()):
        yield f"the types of what is kept were {_typed(old)}, and now {_typed(new)}"


def _typed(types: StateTypes) -> str:
    return ", ".join(f"{name} ({', '.join(kinds) or 'nothing'})" for name, kinds in types.items()) or "none"


def _unlike_offsets(query: LiveQuery, checkpoint: Path) -> Iterator[str]:
    """What can be told of a checkpoint that was made before there were records."""
    topics = [topic for source in query.sources if (topic := topic_of(source)) is not None]
    now = {topic.name for topic in topics}
    before = checkpointed_topics(checkpoint) - ({topic.events for topic in topics} - now)
    if before != now:
        yield f"it was reading {', '.join(sorted(before))}, and now {', '.join(sorted(now))}"


def _read(path: Path) -> _Record:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        if found["format"] != _FORMAT:
            msg = (
                f"{path} has format {found['format']}, this flowcore reads {_FORMAT}: whether its checkpoint "
                "is of this plan cannot be told; use the flowcore that wrote it, or another state.dir"
            )
            raise StateError(msg)
        states = tuple(
            KeptState(**{**state, "keys": tuple(state["keys"]), "values": tuple(state["values"])})
            for state in found["states"]
        )
        types = tuple((name, tuple(kinds)) for name, kinds in found["types"])
        return _Record(found["flow"], found["query"], CheckpointNeeds(tuple(found["sources"]), states), types)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        msg = (
            f"{path} cannot be read ({error}): whether its checkpoint is of this plan cannot be told; bring "
            "the file back, or use another state.dir, or delete the file if you know that the flow reads and "
            "keeps what it did"
        )
        raise StateError(msg) from error
