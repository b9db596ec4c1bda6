"""Asset keys and names of jobs, ops and pools for the parts of a flow, and its external assets.

A table of a bounded stage has the key ``[flow, table]``. Sources and sinks have keys without the flow's name,
so that one flow's output and another flow's input are the same asset: ``["kafka", topic]`` or ``["files",
*path]``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence

import dagster as dg

from flowcore.api.connectors import Frame, KafkaTopic, Source
from flowcore.api.operators import Read, Write
from flowcore.escaping import markdown_code
from flowcore.planner.model import BoundedStage
from flowcore.planner.plan import Plan

__all__ = [
    "asset_key",
    "asset_kind",
    "bounded_keys",
    "build_external_assets",
    "check_name",
    "identifier",
    "live_key",
    "op_name",
    "stage_keys",
    "table_key",
    "topic_key",
    "topics_with_dead_letters",
]


def asset_key(flow: str, operator: Read | Write) -> dg.AssetKey:
    """The key of a source or sink."""
    match operator.connector:
        case KafkaTopic(name=name):
            return topic_key(name)
        case Frame():
            return dg.AssetKey([flow, operator.name])
        case files:
            parts = [part for part in re.split(r"[:/\\]+", files.path) if part]
            return dg.AssetKey(["files", *(_accepted(part, r"[^\w.-]") for part in parts)])


def topic_key(name: str) -> dg.AssetKey:
    """The key of a topic, the same for all flows."""
    return dg.AssetKey(["kafka", name])


def asset_kind(connector: Source) -> str:
    """The asset kind of a source or sink, which selects the icon in the UI: ``kafka``, ``parquet``, ..."""
    special = {KafkaTopic: "kafka", Frame: "python"}
    return special.get(type(connector), type(connector).__name__.lower())


def op_name(flow: str, stage: str) -> str:
    """The name of a stage's op and of its pool; it differs from all names of jobs.

    >>> op_name("sales", "live")
    'sales__live'
    """
    return f"{identifier(flow)}__{identifier(stage)}"


def table_key(flow: str, result: str) -> dg.AssetKey:
    return dg.AssetKey([flow, result])


def live_key(flow: str) -> dg.AssetKey:
    return dg.AssetKey([flow, "live"])


def stage_keys(stage: BoundedStage, plan: Plan) -> list[dg.AssetKey]:
    tables = [table_key(plan.flow, result.name) for result in stage.results]
    return tables + [asset_key(plan.flow, sink) for sink in stage.sinks]


def bounded_keys(plan: Plan) -> list[dg.AssetKey]:
    return [key for stage in plan.bounded for key in stage_keys(stage, plan)]


def identifier(*parts: str) -> str:
    """A valid Dagster name for a job, op, group or pool: letters, digits and ``_``.

    >>> identifier("shop-sales", "totals+report")
    'shop_sales_totals_report'
    """
    return re.sub(r"\W", "_", "_".join(parts), flags=re.ASCII)


def check_name(rule: str, columns: Sequence[str]) -> str:
    """The name of an asset check of columns.

    >>> check_name("unique", ["shop", "auction-id"])
    'unique_shop_auction_id_08728cca'
    """
    return "_".join([rule, *(_accepted(column, r"\W") for column in columns)])


def _accepted(name: str, refused: str) -> str:
    """A name without characters that Dagster refuses; a digest keeps apart names that differ in these only.

    >>> _accepted("history", r"[^\\w.-]"), _accepted("day=1", r"[^\\w.-]")
    ('history', 'day_1_51234957')
    """
    accepted = re.sub(refused, "_", name, flags=re.ASCII)
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return name if accepted == name else f"{accepted}_{digest}"


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
                description = f"Kafka topic {markdown_code(name)}"
            case Frame():
                description = f"DataFrame that the flow makes for {markdown_code(operator.name)}"
            case files:
                description = f"{type(files).__name__} files {markdown_code(files.path)}"
        kind = asset_kind(operator.connector)
        yield asset_key(plan.flow, operator), kind, description, isinstance(operator, Write)
    for topic in topics_with_dead_letters(plan):
        description = (
            f"Dead letters of topic {markdown_code(topic.name)}, each with the reason in its headers"
        )
        yield topic_key(topic.dead_letter), "kafka", description, True
