"""The plan file of a checkpoint: what the checkpoint belongs to, and whether this plan can restore it.

The file ``<query>.plan.json`` is beside each checkpoint folder, and is written before each start of the
query. It holds its own format, the identity of the checkpoint (`flowcore.spark.checkpoint.identity`), what
the plan needs (`flowcore.planner.rules.compatibility`), and the types of Spark's state. A plan that needs
something else is refused before it has written anything.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flowcore.api.node import KeptState
from flowcore.delivery import LedgerTerms
from flowcore.durations import read_clock_ms
from flowcore.errors import StateError
from flowcore.kafka.topics import TopicIdentity
from flowcore.keyed.content import StoredSchemas
from flowcore.planner.model import LiveQuery
from flowcore.planner.plan import Plan
from flowcore.planner.rules.compatibility import CheckpointNeeds, derive_needs, find_differences
from flowcore.settings import Settings
from flowcore.spark.checkpoint.identity import CheckpointIdentity, create_checkpoint, read_id, start_anew
from flowcore.spark.checkpoint.offset_log import (
    checkpointed_topics,
    has_unfinished_batch,
    next_batch,
    planned_batches,
)
from flowcore.spark.checkpoint.storage import require_undamaged
from flowcore.spark.checkpoint.stored_types import decode_schemas, encode_schemas, find_type_changes
from flowcore.stored_json import read_json

__all__ = [
    "StateTypes",
    "checkpoint_folder",
    "move_to_key_groups",
    "plan_file_of",
    "read_plan_file",
    "read_schemas",
    "refuse_checkpoints",
    "repeated_status",
    "repeated_topics",
    "repeated_versions",
    "require_checkpoints_fit",
    "require_fit",
    "skip_ledger_batch",
    "write_plan_file",
]

_log = logging.getLogger(__name__)

_FORMAT = 3

StateTypes = Mapping[str, tuple[str, ...]]
"""The types of Spark's state, by operator."""


@dataclass(frozen=True, slots=True)
class _PlanFile:
    """What a plan file says."""

    flow: str
    query: str
    needs: CheckpointNeeds
    types: StateTypes
    identity: CheckpointIdentity


def checkpoint_folder(query: LiveQuery, flow: str, settings: Settings) -> Path:
    """The folder of a query's checkpoint."""
    return settings.state_dir.absolute() / flow / "checkpoints" / query.name


def plan_file_of(checkpoint: Path) -> Path:
    """The file that says which plan made a checkpoint."""
    return checkpoint.with_name(f"{checkpoint.name}.plan.json")


def require_checkpoints_fit(plan: Plan, settings: Settings) -> None:
    """Check that every query of a plan can restore its checkpoint; needs neither Spark nor a broker.

    Raises:
        StateError: A query cannot; the message shows both plans' needs, and what to do. Or an operator is in
            another query than before.
    """
    for query in plan.live_queries:
        require_fit(query, plan.flow, checkpoint_folder(query, plan.flow, settings))
    _require_unmoved(plan, settings)


def _require_unmoved(plan: Plan, settings: Settings) -> None:
    """Check that no query that the plan does not have keeps the state of an operator that it has."""
    queries = {query.name: query for query in plan.live_queries}
    places = {state.operator: name for name, query in queries.items() for state in derive_needs(query).states}
    folder = settings.state_dir.absolute() / plan.flow / "checkpoints"
    for path in sorted(folder.glob("*.plan.json")):
        name = path.name.removesuffix(".plan.json")
        checkpoint = path.with_name(name)
        if name in queries or not planned_batches(checkpoint):
            continue
        kept: tuple[KeptState, ...] = ()
        with suppress(StateError):  # a damaged file of a query that does not run any more
            kept = _read(path).needs.states
        moved = [
            f"it keeps the state of {state.operator!r}, which is in query {places[state.operator]!r} now"
            for state in kept
            if state.operator in places
        ]
        refuse_checkpoints(
            moved, {name: checkpoint}, plan.flow,
            what="it would begin with empty state; go back to the flow that made it",
        )  # fmt: skip


def require_fit(
    query: LiveQuery, flow: str, checkpoint: Path, types: StateTypes | None = None,
    schemas: Mapping[str, StoredSchemas] | None = None,
) -> None:  # fmt: skip
    """Check that a query can restore its checkpoint, if there is one.

    Args:
        types: The types of the state that Spark keeps, if they are known, as for `write_plan_file`.
        schemas: What its operators by key group keep, if that is known.

    Raises:
        StateError: The query cannot, or the checkpoint is damaged, or missing although there is a plan file.
    """
    path = plan_file_of(checkpoint)
    record = _read(path) if path.exists() else None
    require_undamaged(checkpoint, record.identity.checkpoint if record else None)
    found = read_id(checkpoint)
    if record is not None and record.identity.checkpoint != found:
        missing = f"the id in its folder is {found}" if found else "its folder is missing"
        refuse_checkpoints(
            [f"{path.name} is of the checkpoint {record.identity}, and {missing}"],
            {query.name: checkpoint}, flow,
            what="the query would read its sources from their start position, and skip or repeat records; "
            "bring the folder back",
        )  # fmt: skip
    if not planned_batches(checkpoint):
        return
    differences: Iterable[str]
    if record is None:
        differences = _topic_differences(query, checkpoint)
    else:
        differences = [*_differences(record, query, flow, types)]
        if schemas and not differences:
            differences = find_type_changes(query, _read_schemas(path), schemas)
    refuse_checkpoints(
        differences, {query.name: checkpoint}, flow,
        what="its state would be read as something else; go back to the flow that made it",
    )  # fmt: skip


def refuse_checkpoints(
    differences: Iterable[str], checkpoints: Mapping[str, Path], flow: str, *, what: str
) -> None:
    """Refuse the checkpoints of queries if they differ; ``what`` would happen, and one way out.

    Raises:
        StateError: The checkpoints differ.
    """
    if found := "; ".join(differences):
        several = "queries" if len(checkpoints) > 1 else "query"
        names = ", ".join(map(repr, checkpoints))
        folders = ", ".join(map(str, checkpoints.values()))
        msg = (
            f"{several} {names} of flow {flow!r} cannot continue from checkpoint {folders}: {found}: {what}, "
            f"or start anew: with another state.dir, with another name for {names}, or after the command: "
            f"{start_anew(checkpoints.values())}"
        )
        raise StateError(msg)


def read_plan_file(checkpoint: Path) -> CheckpointIdentity | None:
    """The identity in a checkpoint's plan file; None if there is none.

    Raises:
        StateError: The file cannot be read.
    """
    path = plan_file_of(checkpoint)
    return _read(path).identity if path.exists() else None


def repeated_versions(checkpoint: Path) -> Mapping[str, str]:
    """The versions of bounded results, by stage, that the next batch joins again; none if the batch is new.

    Spark logs what a real-time batch has read when the batch ends. So a stop repeats the records of its last,
    unknown batch.
    """
    identity = read_plan_file(checkpoint)
    if identity is None or not (has_unfinished_batch(checkpoint) or identity.mode == "realtime"):
        return {}
    return identity.bounded


def repeated_status(checkpoint: Path) -> bool | None:
    """Whether the records of a planned batch that runs again are backlog; None if the next batch is new."""
    identity = read_plan_file(checkpoint)
    return None if identity is None or not has_unfinished_batch(checkpoint) else identity.lags


def repeated_topics(checkpoint: Path) -> Mapping[str, TopicIdentity]:
    """The topics that a planned batch reads again, as it found them; none if the next batch is new."""
    identity = read_plan_file(checkpoint)
    return {} if identity is None or not has_unfinished_batch(checkpoint) else identity.topics


def write_plan_file(
    query: LiveQuery,
    flow: str,
    checkpoint: Path,
    types: StateTypes,
    *,
    topics: Mapping[str, TopicIdentity],
    bounded: Mapping[str, str],
    mode: str = "",
    lags: bool = False,
    slots: int | None = None,
    repeat_batch: int | None = None,
    ledger_series: int = 0,
    schemas: Mapping[str, StoredSchemas] | None = None,
) -> CheckpointIdentity:
    """Write what a checkpoint belongs to, and create its folder; to be called before the query starts.

    Args:
        types: The types of the state that Spark keeps, by operator with state.
        bounded: The version of each bounded result that it joins from now on, by stage.
        mode: The mode that counts as that of this start; by default the query's.
        lags: The records that it reads from now on are backlog.
        slots: The number of slots of a query that delivers exactly once, if the checkpoint does not say it.
        repeat_batch: See `flowcore.delivery.LedgerTerms.choose`.
        ledger_series: The largest series in the ledger, if ``repeat_batch`` is the next batch.
        schemas: What its operators by key group keep, by name.
    """
    path = plan_file_of(checkpoint)
    if planned_batches(checkpoint) and not path.exists():
        _log.warning("checkpoint %s has no plan file yet; it is assumed to be of this plan", checkpoint)
    needs = derive_needs(query)
    before = read_plan_file(checkpoint)
    known, series, ledger = (before.ledger, before.series, None) if before else (None, 0, None)
    series = known.series if known else series
    if slots is not None:
        last = max(series, ledger_series)
        ledger = LedgerTerms.choose(known, next_batch(checkpoint), slots, repeat_batch, last)
    identity = CheckpointIdentity(
        checkpoint=create_checkpoint(checkpoint),
        born_ms=before.born_ms if before else read_clock_ms(),
        depth=len(query.exchanges),
        topics={name: topics[name] for name in sorted({topic.name for topic in query.topics_read})},
        bounded=bounded,
        mode=mode or query.mode.value,
        lags=lags,
        ledger=ledger,
        series=series,
    )
    content = {
        "format": _FORMAT,
        "flow": flow,
        "query": query.name,
        "fingerprint": needs.fingerprint,
        **asdict(needs),
        "types": [[name, list(kinds)] for name, kinds in types.items()],
        "identity": asdict(identity),
        "schemas": encode_schemas(schemas or {}),
    }
    _write(path, content)
    return identity


def read_schemas(checkpoint: Path) -> dict[str, StoredSchemas]:
    """What the operators by key group of a checkpoint keep, by name.

    Raises:
        StateError: The file cannot be read, or has no schemas.
    """
    path = plan_file_of(checkpoint)
    found = _read_schemas(path) if path.exists() and _read(path) else None
    if not found:
        msg = (
            f"{path} does not say what types the keys of the state have: they would not be found in other "
            "key groups; start the flow once with this flowcore, stop it, and then run this again"
        )
        raise StateError(msg)
    return found


def _read_schemas(path: Path) -> dict[str, StoredSchemas]:
    """The schemas in a plan file; none if an earlier version wrote it."""
    try:
        return decode_schemas(read_json(path).get("schemas") or {})
    except (ValueError, TypeError, AttributeError, OSError) as error:
        raise _unreadable(path, error) from error


def move_to_key_groups(checkpoint: Path, key_groups: int) -> None:
    """Write to a plan file that the state is in another number of key groups."""
    path = plan_file_of(checkpoint)
    needs = _read(path).needs
    states = tuple(
        state if state.key_groups is None else replace(state, key_groups=key_groups) for state in needs.states
    )
    needs = replace(needs, states=states)
    _write(path, {**read_json(path), "fingerprint": needs.fingerprint, **asdict(needs)})


def skip_ledger_batch(checkpoint: Path) -> None:
    """Let the ledger of a query that delivers exactly once begin again with the next batch.

    To be called after a batch that was committed and has no records. Every batch before it was written.
    """
    path = plan_file_of(checkpoint)
    identity = read_plan_file(checkpoint)
    if identity is None or identity.ledger is None or has_unfinished_batch(checkpoint):
        return
    number, known = next_batch(checkpoint), identity.ledger
    if known.series and known.since == number:  # an earlier call has done it
        return
    terms = LedgerTerms.choose(known, number, known.slots, number)
    content = {**read_json(path), "identity": asdict(replace(identity, ledger=terms))}
    _write(path, content)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    part = path.with_name(f".{path.name}.part")
    with part.open("w") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _topic_differences(query: LiveQuery, checkpoint: Path) -> Iterator[str]:
    """The differences that show without a plan file: other topics."""
    now = {topic.name for topic in query.topics_read}
    before = checkpointed_topics(checkpoint) - ({topic.events for topic in query.topics_read} - now)
    if before != now:
        yield f"it was reading {', '.join(sorted(before))}, and now {', '.join(sorted(now))}"


def _differences(record: _PlanFile, query: LiveQuery, flow: str, types: StateTypes | None) -> Iterator[str]:
    if (record.flow, record.query) != (flow, query.name):
        yield f"it is of query {record.query!r} of flow {record.flow!r}"
    differences = tuple(find_differences(record.needs, derive_needs(query)))
    yield from differences
    depth = len(query.exchanges)
    if record.identity.depth != depth and not differences:
        yield f"it had {record.identity.depth} exchanges between operators with state, and now has {depth}"
    if types is not None and list(record.types.values()) != list(types.values()):
        yield f"the types of its state were {_show(record.types)}, and now {_show(types)}"


def _show(types: StateTypes) -> str:
    return ", ".join(f"{name} ({', '.join(kinds) or 'nothing'})" for name, kinds in types.items()) or "none"


def _read(path: Path) -> _PlanFile:
    try:
        found: dict[str, Any] = read_json(path)
        if found["format"] != _FORMAT:
            msg = (
                f"{path} has format {found['format']}, this flowcore reads {_FORMAT}: whether its "
                "checkpoint is of this plan is unknown; use the flowcore that wrote it, or another state.dir"
            )
            raise StateError(msg)
        states = tuple(
            KeptState(**{**state, "keys": tuple(state["keys"]), "values": tuple(state["values"])})
            for state in found["states"]
        )
        types = {name: tuple(kinds) for name, kinds in found["types"]}
        identity = CheckpointIdentity.parse(found["identity"])
        stored = tuple((name, tuple(columns)) for name, columns in found.get("stored", ()))
        triggers = tuple((name, kind) for name, kind in found.get("triggers", ()))
        joined = tuple((name, tuple(columns)) for name, columns in found.get("joined", ()))
        needs = CheckpointNeeds(tuple(found["sources"]), states, stored, triggers, joined)
        texts = [(*each.keys, *each.values) for each in states]
        texts += [*triggers, *((name, *columns) for name, columns in (*stored, *joined))]
        for part in (needs.sources, *types.values(), *texts):
            if not all(isinstance(text, str) for text in part):
                msg = f"{part} are not texts"
                raise TypeError(msg)  # noqa: TRY301 - as if it could not be parsed
        return _PlanFile(found["flow"], found["query"], needs, types, identity)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> StateError:
    return StateError(
        f"{path} cannot be read ({error}): whether its checkpoint is of this plan is unknown; bring the "
        "file back, or use another state.dir, or delete the file if you know that the flow reads and "
        "keeps what it did"
    )
