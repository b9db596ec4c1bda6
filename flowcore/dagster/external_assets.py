"""External assets of a flow: topics and files that Dagster shows but does not materialize."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import dagster as dg

from flowcore.api.connectors import Frame, KafkaTopic
from flowcore.api.operators import Read, Write
from flowcore.dagster.names import asset_key, asset_kind, bounded_keys, live_key, topic_key
from flowcore.planner.plan import Plan


def build_external_assets(plans: Sequence[Plan]) -> list[dg.AssetSpec]:
    """One spec for each source, and for each sink and dead-letter topic of live queries.

    An asset that several flows use has one spec. An asset that one of the flows materializes is not external.
    """
    described: dict[dg.AssetKey, tuple[str, str]] = {}
    writers: dict[dg.AssetKey, dict[dg.AssetKey, None]] = {}
    for plan in plans:
        for key, kind, description, is_written in _external_assets(plan):
            described.setdefault(key, (kind, description))
            writers.setdefault(key, {}).update({live_key(plan.flow): None} if is_written else {})
    materialized = {key for plan in plans for key in bounded_keys(plan)}
    return [
        dg.AssetSpec(
            key, description=description, kinds={kind}, group_name="external", deps=list(writers[key])
        )
        for key, (kind, description) in described.items()
        if key not in materialized
    ]


def topics_with_dead_letters(plan: Plan) -> tuple[KafkaTopic, ...]:
    """The source topics whose bad records live queries write to a dead-letter topic."""
    sources = (source for query in plan.live_queries for source in query.dead_letters)
    return tuple(dict.fromkeys(topic for source in sources if (topic := source.topic)))


def _external_assets(plan: Plan) -> Iterator[tuple[dg.AssetKey, str, str, bool]]:
    """Key, kind, description, and whether the flow's live queries write it."""
    ends: list[Read | Write] = [source for stage in plan.bounded for source in stage.sources]
    for query in plan.live_queries:
        ends += [*query.sources, *query.sinks]
    for operator in dict.fromkeys(ends):
        match operator.connector:
            case KafkaTopic(name=name):
                description = f"Kafka topic `{name}`"
            case Frame():
                description = f"DataFrame that the flow makes for `{operator.name}`"
            case files:
                description = f"{type(files).__name__} files `{files.path}`"
        kind = asset_kind(operator.connector)
        yield asset_key(plan.flow, operator), kind, description, isinstance(operator, Write)
    for topic in topics_with_dead_letters(plan):
        description = f"Dead letters of topic `{topic.name}`, each with the reason in its headers"
        yield topic_key(topic.dead_letter), "kafka", description, True
