"""Externals: the topics and files around a flow, which Dagster shows but does not make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dagster import AssetDep, AssetKey, AssetSpec

from flowcore.api.connectors import Frame, KafkaTopic
from flowcore.api.operators import Read, Write, topic_of
from flowcore.dagster.names import asset_key, kind_of, live_key, topic_key
from flowcore.planner.plan import Plan

__all__ = ["External", "dead_lettered", "external_specs", "externals_of"]


@dataclass(frozen=True, slots=True)
class External:
    """One thing outside, as one flow sees it.

    Attributes:
        key: The same for every flow that reads or writes it.
        kind: ``kafka``, or the format of its files.
        description: What it is.
        written_by: The asset that writes it, None for a source.
    """

    key: AssetKey
    kind: str
    description: str
    written_by: AssetKey | None


def externals_of(plan: Plan) -> tuple[External, ...]:
    """The sources of a plan, and the topics and files that its live queries write, dead letters' included."""
    queries = plan.live.queries if plan.live else ()
    ends: dict[Read | Write, None] = {}
    for stage in plan.bounded:
        ends.update(dict.fromkeys(stage.sources))
    for query in queries:
        ends.update(dict.fromkeys([*query.sources, *query.sinks]))
    letters = (_letters(plan.flow, topic) for topic in dead_lettered(plan))
    return (*(_external(plan.flow, end) for end in ends), *letters)


def dead_lettered(plan: Plan) -> tuple[KafkaTopic, ...]:
    """The topics whose bad records live queries put aside."""
    sources = (source for query in (plan.live.queries if plan.live else ()) for source in query.dead_letters)
    return tuple(dict.fromkeys(topic for source in sources if (topic := topic_of(source))))


def external_specs(externals: Iterable[External], made: Iterable[AssetKey]) -> list[AssetSpec]:
    """One spec for each thing outside, however many flows share it.

    Args:
        externals: Of all flows.
        made: Assets that Dagster makes; what one flow makes is not outside of another.
    """
    shared: dict[AssetKey, list[External]] = {}
    for external in externals:
        shared.setdefault(external.key, []).append(external)
    for key in made:
        shared.pop(key, None)
    return [
        AssetSpec(
            key,
            description=views[0].description,
            kinds={views[0].kind},
            group_name="external",
            deps=[AssetDep(writer) for writer in dict.fromkeys(v.written_by for v in views) if writer],
        )
        for key, views in shared.items()
    ]


def _letters(flow: str, topic: KafkaTopic) -> External:
    description = f"Messages of topic `{topic.name}` that were refused, each with the reason in its headers"
    return External(topic_key(topic.dead_letter), "kafka", description, live_key(flow))


def _external(flow: str, end: Read | Write) -> External:
    written_by = live_key(flow) if isinstance(end, Write) else None
    connector = end.source if isinstance(end, Read) else end.sink
    match connector:
        case KafkaTopic(name=name):
            description = f"Kafka topic `{name}`"
        case Frame():
            description = f"DataFrame that the flow makes for `{end.name}`"
        case files:
            description = f"{type(files).__name__} files `{files.path}`"
    return External(asset_key(flow, end), kind_of(connector), description, written_by)
