"""Asset keys and names of jobs, ops and pools for the parts of a flow, and its external assets.

A table of a bounded stage has the key ``[flow, table]``. Sources and sinks have keys without the flow's name,
so that one flow's output and another flow's input are the same asset: ``["kafka", topic]`` or ``["files",
*path]``.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import dagster as dg

from flowcore.api.connectors import Frame, KafkaTopic, Source
from flowcore.api.operators import Read, Write
from flowcore.escaping import markdown_code
from flowcore.planner.model import BoundedStage, LiveQuery
from flowcore.planner.plan import Plan

__all__ = [
    "asset_key",
    "asset_kind",
    "bounded_dependencies",
    "bounded_keys",
    "build_external_assets",
    "check_name",
    "check_op_name",
    "identifier",
    "live_dependencies",
    "live_key",
    "op_name",
    "stage_keys",
    "table_key",
    "topic_key",
    "topics_with_dead_letters",
    "unique_identifiers",
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


def bounded_dependencies(plan: Plan) -> dict[dg.AssetKey, list[dg.AssetKey]]:
    """What each table and sink of the bounded stages is made of, without what would close a cycle.

    A stage may read a topic up to its end, and write to it, and of two stages each may read what the other
    writes. Dagster refuses such assets.
    """
    found: dict[dg.AssetKey, list[dg.AssetKey]] = {}
    for stage in plan.bounded:
        sources = [asset_key(plan.flow, source) for source in stage.sources]
        for key in stage_keys(stage, plan):
            found[key] = [source for source in sources if not _depends(source, key, found)]
    return found


def live_dependencies(plan: Plan) -> list[dg.AssetKey]:
    """What the live queries read, but for the topics of their own cuts."""
    tables = [table_key(plan.flow, result.name) for stage in plan.bounded for result in stage.results]
    sources = plan.live.sources if plan.live else ()
    return tables + [asset_key(plan.flow, source) for source in sources if source.written_by is None]


def _depends(
    key: dg.AssetKey, other: dg.AssetKey, dependencies: Mapping[dg.AssetKey, Sequence[dg.AssetKey]]
) -> bool:
    """Whether an asset is another one, or is made of it, directly or not."""
    seen, waiting = set[dg.AssetKey](), [key]
    while waiting and waiting[-1] != other:
        each = waiting.pop()
        if each not in seen:
            seen.add(each)
            waiting += dependencies.get(each, ())
    return bool(waiting)


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


def check_op_name(key: dg.AssetKey, check: str) -> str:
    """The name of the op of an asset check, which is unique in a code location.

    Dagster's own name for it is the same for assets whose keys differ in ``-`` and ``.`` only.

    >>> check_op_name(dg.AssetKey(["kafka", "bids.dead-letter"]), "quiet")
    'kafka__bids_dead_letter_0e8562aa_quiet'
    """
    return "__".join(_accepted(part, r"\W") for part in key.path) + f"_{check}"


def unique_identifiers(keys: Iterable[dg.AssetKey]) -> dict[dg.AssetKey, str]:
    """Names of an op's inputs or outputs by key: Dagster's own, with a digest where several have the same.

    >>> keys = [dg.AssetKey(["files", name]) for name in ("in", "a-b", "a.b")]
    >>> list(unique_identifiers(keys).values())
    ['files__in', 'files__a_b_de2cbb12', 'files__a_b_52cba90c']
    """
    names = {key: key.to_python_identifier() for key in keys}
    counts = Counter(names.values())
    return {
        key: name if counts[name] == 1 else f"{name}_{_digest(key.to_user_string())}"
        for key, name in names.items()
    }


def _accepted(name: str, refused: str) -> str:
    r"""A name without characters that Dagster refuses; a digest keeps apart names that differ in these only.

    >>> _accepted("history", r"[^\w.-]"), _accepted("day=1", r"[^\w.-]")
    ('history', 'day_1_51234957')
    """
    accepted = re.sub(refused, "_", name, flags=re.ASCII)
    return name if accepted == name else f"{accepted}_{_digest(name)}"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]


def build_external_assets(plans: Sequence[Plan]) -> list[dg.AssetSpec]:
    """One spec for each source, and for each sink and dead-letter topic of live queries.

    An asset that several flows use has one spec. An asset that one of the flows materializes is not external.
    A topic does not depend on live queries that read it, directly or through other assets, and write it, as
    on another broker: Dagster cannot order a cycle of assets.
    """
    described: dict[dg.AssetKey, tuple[str, str]] = {}
    writers: dict[dg.AssetKey, dict[dg.AssetKey, None]] = {}
    dependencies: dict[dg.AssetKey, list[dg.AssetKey]] = {}
    for plan in plans:
        dependencies |= {live_key(plan.flow): live_dependencies(plan), **bounded_dependencies(plan)}
        for key, kind, description, is_written in _external_assets(plan):
            described.setdefault(key, (kind, description))
            writers.setdefault(key, {}).update({live_key(plan.flow): None} if is_written else {})
    specs = []
    for key, (kind, description) in described.items():
        if key not in dependencies:
            deps = [writer for writer in writers[key] if not _depends(writer, key, dependencies)]
            dependencies[key] = deps
            specs.append(
                dg.AssetSpec(key, description=description, kinds={kind}, group_name="external", deps=deps)
            )
    return specs


def topics_with_dead_letters(plan: Plan) -> tuple[tuple[KafkaTopic, LiveQuery], ...]:
    """The source topics with a dead-letter topic, each with a live query that writes their bad records there.

    The dead-letter topic is at the broker that the query writes to.
    """
    found = ((source.topic, query) for query in plan.live_queries for source in query.dead_letters)
    return tuple(dict.fromkeys((topic, query) for topic, query in found if topic))


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
    for topic, _ in topics_with_dead_letters(plan):
        description = (
            f"Dead letters of topic {markdown_code(topic.name)}, each with the reason in its headers"
        )
        yield topic_key(topic.dead_letter), "kafka", description, True
