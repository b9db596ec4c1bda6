"""The plan file of a checkpoint: which plan made the checkpoint, and whether this plan can restore it.

The file ``<query>.plan.json`` is beside each checkpoint folder, and is written before the query's first
batch. It holds its own format, what the plan needs (`flowcore.planner.rules.compatibility`), and the types of
Spark's state. A plan that needs something else is refused before it has written anything.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flowcore.api.node import KeptState
from flowcore.errors import StateError
from flowcore.planner.model import LiveQuery
from flowcore.planner.plan import Plan
from flowcore.planner.rules.compatibility import CheckpointNeeds, derive_needs, find_differences
from flowcore.settings import Settings
from flowcore.spark.checkpoint.offset_log import checkpointed_topics, planned_batches

__all__ = [
    "StateTypes",
    "checkpoint_folder",
    "plan_file_of",
    "require_checkpoints_fit",
    "require_fit",
    "write_plan_file",
]

_log = logging.getLogger(__name__)

_FORMAT = 1

StateTypes = Mapping[str, tuple[str, ...]]
"""The types of Spark's state, by operator."""


def checkpoint_folder(query: LiveQuery, flow: str, settings: Settings) -> Path:
    """The folder of a query's checkpoint."""
    return settings.state_dir.absolute() / flow / "checkpoints" / query.name


def plan_file_of(checkpoint: Path) -> Path:
    """The file that says which plan made a checkpoint."""
    return checkpoint.with_name(f"{checkpoint.name}.plan.json")


def require_checkpoints_fit(plan: Plan, settings: Settings) -> None:
    """Check that every query of a plan can restore its checkpoint; needs neither Spark nor a broker.

    Raises:
        StateError: A query cannot; the message shows both plans' needs, and what to do.
    """
    for query in plan.live_queries:
        require_fit(query, plan.flow, checkpoint_folder(query, plan.flow, settings))


def require_fit(query: LiveQuery, flow: str, checkpoint: Path, types: StateTypes | None = None) -> None:
    """Check that a query can restore its checkpoint, if there is one, and the state types, if known.

    Raises:
        StateError: The query cannot.
    """
    if not planned_batches(checkpoint):
        return
    path = plan_file_of(checkpoint)
    known = _differences(path, query, flow, types) if path.exists() else _topic_differences(query, checkpoint)
    if found := tuple(known):
        msg = (
            f"query {query.name!r} of flow {flow!r} cannot continue from its checkpoint {checkpoint}: "
            f"{'; '.join(found)}: its state would be read as something else; go back to the flow that made "
            f"it, or start anew: with another state.dir, with another name for {query.name!r}, or after you "
            f"have deleted {checkpoint} and {path.name}"
        )
        raise StateError(msg)


def write_plan_file(query: LiveQuery, flow: str, checkpoint: Path, types: StateTypes) -> None:
    """Write which plan makes a checkpoint; to be called after the check, before the query starts."""
    path = plan_file_of(checkpoint)
    if planned_batches(checkpoint) and not path.exists():
        _log.warning(
            "checkpoint %s was made before flowcore wrote plan files; it is assumed to be of this plan",
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


def _topic_differences(query: LiveQuery, checkpoint: Path) -> Iterator[str]:
    """The differences that show without a plan file: other topics."""
    topics = [topic for source in query.sources if (topic := source.topic) is not None]
    now = {topic.name for topic in topics}
    before = checkpointed_topics(checkpoint) - ({topic.events for topic in topics} - now)
    if before != now:
        yield f"it was reading {', '.join(sorted(before))}, and now {', '.join(sorted(now))}"


def _differences(path: Path, query: LiveQuery, flow: str, types: StateTypes | None) -> Iterator[str]:
    old_flow, old_query, needs, old_types = _read(path)
    if (old_flow, old_query) != (flow, query.name):
        yield f"it is of query {old_query!r} of flow {old_flow!r}"
    yield from find_differences(needs, derive_needs(query))
    if types is not None and list(old_types.values()) != list(types.values()):
        yield f"the types of its state were {_show(old_types)}, and now {_show(types)}"


def _show(types: StateTypes) -> str:
    return ", ".join(f"{name} ({', '.join(kinds) or 'nothing'})" for name, kinds in types.items()) or "none"


def _read(path: Path) -> tuple[str, str, CheckpointNeeds, StateTypes]:
    """Flow, query, needs and types of state of a plan file."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        if found["format"] != _FORMAT:
            msg = (
                f"{path} has format {found['format']}, this flowcore reads {_FORMAT}: whether its checkpoint "
                "is of this plan is unknown; use the flowcore that wrote it, or another state.dir"
            )
            raise StateError(msg)
        states = tuple(
            KeptState(**{**state, "keys": tuple(state["keys"]), "values": tuple(state["values"])})
            for state in found["states"]
        )
        types = {name: tuple(kinds) for name, kinds in found["types"]}
        return found["flow"], found["query"], CheckpointNeeds(tuple(found["sources"]), states), types
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        msg = (
            f"{path} cannot be read ({error}): whether its checkpoint is of this plan is unknown; bring the "
            "file back, or use another state.dir, or delete the file if you know that the flow reads and "
            "keeps what it did"
        )
        raise StateError(msg) from error
