"""External assets of a flow: topics and files that Dagster shows but does not materialize."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import dagster as dg

from flowcore.api.connectors import Frame, KafkaTopic
from flowcore.api.operators import Read, Write
from flowcore.dagster.names import asset_key, asset_kind, live_key, topic_key
from flowcore.planner.plan import Plan

__all__ = ["ExternalAsset", "collect_external_assets", "external_specs", "topics_with_dead_letters"]


@dataclass(frozen=True, slots=True)
class ExternalAsset:
    """One external asset, as one flow uses it.

    Attributes:
        key: The same for every flow that reads or writes it.
        kind: ``kafka``, or the format of its files.
        description: For the UI.
        written_by: The asset that writes it, None for a source.
    """

    key: dg.AssetKey
    kind: str
    description: str
    written_by: dg.AssetKey | None


def collect_external_assets(plan: Plan) -> tuple[ExternalAsset, ...]:
    """The sources of a plan, the sinks of its live queries, and its dead-letter topics."""
    operators: dict[Read | Write, None] = {}
    for stage in plan.bounded:
        operators.update(dict.fromkeys(stage.sources))
    for query in plan.live_queries:
        operators.update(dict.fromkeys([*query.sources, *query.sinks]))
    dead_letters = (
        ExternalAsset(
            topic_key(topic.dead_letter),
            "kafka",
            f"Dead letters of topic `{topic.name}`, each with the reason in its headers",
            live_key(plan.flow),
        )
        for topic in topics_with_dead_letters(plan)
    )
    return (*(_external_asset(plan.flow, operator) for operator in operators), *dead_letters)


def topics_with_dead_letters(plan: Plan) -> tuple[KafkaTopic, ...]:
    """The source topics whose bad records live queries write to a dead-letter topic."""
    sources = (source for query in plan.live_queries for source in query.dead_letters)
    return tuple(dict.fromkeys(topic for source in sources if (topic := source.topic)))


def external_specs(
    external: Iterable[ExternalAsset], materialized: Iterable[dg.AssetKey]
) -> list[dg.AssetSpec]:
    """One spec for each external asset, however many flows share it.

    Args:
        external: The external assets of all flows.
        materialized: Keys that Dagster materializes. If one flow makes an asset, it is external to none.
    """
    shared: dict[dg.AssetKey, list[ExternalAsset]] = {}
    for asset in external:
        shared.setdefault(asset.key, []).append(asset)
    for key in materialized:
        shared.pop(key, None)
    return [
        dg.AssetSpec(
            key,
            description=assets[0].description,
            kinds={assets[0].kind},
            group_name="external",
            deps=[dg.AssetDep(writer) for writer in dict.fromkeys(a.written_by for a in assets) if writer],
        )
        for key, assets in shared.items()
    ]


def _external_asset(flow: str, operator: Read | Write) -> ExternalAsset:
    written_by = live_key(flow) if isinstance(operator, Write) else None
    match operator.connector:
        case KafkaTopic(name=name):
            description = f"Kafka topic `{name}`"
        case Frame():
            description = f"DataFrame that the flow makes for `{operator.name}`"
        case files:
            description = f"{type(files).__name__} files `{files.path}`"
    return ExternalAsset(asset_key(flow, operator), asset_kind(operator.connector), description, written_by)
