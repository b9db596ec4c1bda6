"""Asset checks of a flow's live queries: its service level objectives, and its dead-letter topics.

While a run of Dagster's is active, it evaluates the objectives at each heartbeat; otherwise a sensor does,
also beside a run that Dagster did not start. A person may execute them at any time. Outside of the run they
are evaluated on the progress that the run left on disk (`flowcore.metrics.history`), without Spark or the
broker.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from flowcore.api.connectors import KafkaTopic
from flowcore.dagster.attributes import Objectives
from flowcore.dagster.names import (
    check_op_name,
    identifier,
    live_key,
    op_name,
    topic_key,
    topics_with_dead_letters,
)
from flowcore.dagster.resources import FlowcoreResource
from flowcore.durations import read_clock_ms
from flowcore.errors import BrokerError, PlanError, RunError
from flowcore.escaping import markdown_code
from flowcore.kafka.topics import end_offsets, offsets_at, partition_counts
from flowcore.metrics.health import liveness_problem, show_seconds
from flowcore.metrics.history import history_folder, last_progress
from flowcore.metrics.progress import FlowProgress, QueryProgress
from flowcore.planner.model import LiveQuery
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.context import output_servers

__all__ = [
    "ObjectiveResult",
    "build_dead_letter_checks",
    "build_dead_letter_sensor",
    "build_health_sensor",
    "build_stream_checks",
    "changed_evaluations",
    "check_descriptions",
    "evaluate_objectives",
    "evaluation",
]

_INTERVAL_S = 60
_QUIET = "quiet"
"""The check of a dead-letter topic."""
_PERIOD_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class ObjectiveResult:
    """Whether an objective is met; ``found`` has the unit of the limit, None if nothing is known."""

    name: str
    passed: bool
    found: float | None
    limit: float
    description: str


def check_descriptions(objectives: Objectives) -> dict[str, str]:
    """What each check requires, by its name."""
    found = {
        "late_share": f"At most {objectives.late_share:.2%} of a query's records were late.",
        "dead_letter_share": f"At most {objectives.dead_letter_share:.2%} of a query's records are dead "
        "letters.",
        "fresh": f"The run has reported progress in the last {show_seconds(objectives.fresh_s)}.",
    }
    if objectives.latency_p99_ms is not None:
        found["latency"] = f"99 of 100 latency markers took at most {objectives.latency_p99_ms:g} ms."
    return found


def evaluate_objectives(
    progress: FlowProgress | None, now_ms: int, objectives: Objectives
) -> list[ObjectiveResult]:
    """Evaluate the objectives that `check_descriptions` names on the run's last progress.

    ``now_ms`` is from a clock that agrees with the run's.
    """
    share = objectives.late_share, objectives.dead_letter_share
    results = [
        _share("late_share", progress, lambda query: query.late + query.dropped, share[0]),
        _share("dead_letter_share", progress, lambda query: query.dead_letters, share[1]),
        _fresh(progress, now_ms, objectives.fresh_s),
    ]
    if objectives.latency_p99_ms is not None:
        results.append(_latency(progress, objectives.latency_p99_ms))
    return results


def _share(
    name: str, progress: FlowProgress | None, count: Callable[[QueryProgress], int], limit: float
) -> ObjectiveResult:
    queries = [query for query in progress.queries if query.rows_in or count(query)] if progress else []
    if not queries:
        return ObjectiveResult(name, True, None, limit, "nothing was read")
    # A dead letter may be reported before the record that was read.
    worst = max(queries, key=lambda query: count(query) / max(query.rows_in, count(query)))
    found = count(worst) / max(worst.rows_in, count(worst))
    description = (
        f"{count(worst):,} of {worst.rows_in:,} records of query {markdown_code(worst.name)} ({found:.3%})"
    )
    return ObjectiveResult(name, found <= limit, found, limit, description)


def _fresh(progress: FlowProgress | None, now_ms: int, limit_s: float) -> ObjectiveResult:
    if progress is None:
        return ObjectiveResult("fresh", False, None, limit_s, "the flow has never run live")
    ago_s = max(now_ms - progress.time_ms, 0) / 1000
    how = {"ended": ", when it ended", "failed": f", when it failed: {markdown_code(progress.error)}"}.get(
        progress.state, ""
    )
    passed = ago_s <= limit_s and progress.state != "failed"
    return ObjectiveResult("fresh", passed, ago_s, limit_s, f"last progress {show_seconds(ago_s)} ago{how}")


def _latency(progress: FlowProgress | None, limit_ms: float) -> ObjectiveResult:
    known = [(one.p99_ms, one) for one in (progress.latencies if progress else ()) if one.p99_ms is not None]
    if not known:
        return ObjectiveResult(
            "latency", True, None, limit_ms, "no latency marker arrived in the last minute"
        )
    p99_ms, worst = max(known, key=lambda pair: pair[0])
    edge = f"from {markdown_code(worst.source)} to {markdown_code(worst.sink)}"
    description = f"99 of 100 markers {edge} took at most {p99_ms:g} ms"
    return ObjectiveResult("latency", p99_ms <= limit_ms, p99_ms, limit_ms, description)


def build_stream_checks(plan: Plan, objectives: Objectives) -> dg.AssetChecksDefinition:
    key = live_key(plan.flow)
    specs = [
        dg.AssetCheckSpec(name, asset=key, description=what)
        for name, what in check_descriptions(objectives).items()
    ]

    @dg.multi_asset_check(name=op_name(plan.flow, "health"), specs=specs, can_subset=True)
    def health(
        context: dg.AssetCheckExecutionContext, flowcore: FlowcoreResource
    ) -> Iterator[dg.AssetCheckResult]:
        selected = {check.name for check in context.selected_asset_check_keys}
        progress = last_progress(history_folder(flowcore.settings().state_dir, plan.flow))
        for result in evaluate_objectives(progress, read_clock_ms(), objectives):
            if result.name in selected:
                yield dg.AssetCheckResult(**_check_fields(plan.flow, result))

    return health


def build_health_sensor(plan: Plan, objectives: Objectives) -> dg.SensorDefinition:
    """A sensor that evaluates the checks while no run of Dagster's does; it is on at first."""

    @dg.sensor(
        name=identifier(plan.flow, "health"),
        asset_selection=[live_key(plan.flow)],
        minimum_interval_seconds=_INTERVAL_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Evaluates the objectives of flow `{plan.flow}` as asset checks while no run of "
        "Dagster's does.",
    )
    def watch(context: dg.SensorEvaluationContext, flowcore: FlowcoreResource) -> dg.SensorResult:
        progress = last_progress(history_folder(flowcore.settings().state_dir, plan.flow))
        now_ms = read_clock_ms()
        if progress is None:
            return dg.SensorResult(skip_reason="the flow has never run live, so there is nothing to evaluate")
        if liveness_problem(progress, now_ms) is None and _run_beats(context.instance, plan.flow):
            # Dagster keeps the cursor of before if it gets an empty one.
            return dg.SensorResult(skip_reason="the run evaluates the checks itself", cursor="{}")
        results = evaluate_objectives(progress, now_ms, objectives)
        evaluations = {result.name: evaluation(plan.flow, result) for result in results}
        return changed_evaluations(context.cursor, evaluations)

    return watch


def _run_beats(instance: dg.DagsterInstance, flow: str) -> bool:
    """Whether the last report of a flow is by a run that Dagster has started and that has not ended."""
    reports = instance.fetch_materializations(live_key(flow), limit=1).records
    run = instance.get_run_by_id(reports[0].run_id) if reports else None
    return run is not None and run.status is dg.DagsterRunStatus.STARTED


def evaluation(flow: str, result: ObjectiveResult) -> dg.AssetCheckEvaluation:
    """The check evaluation of an objective of a flow's live queries."""
    return dg.AssetCheckEvaluation(**_check_fields(flow, result))


def changed_evaluations(
    cursor: str | None, evaluations: Mapping[str, dg.AssetCheckEvaluation]
) -> dg.SensorResult:
    """A sensor result with the evaluations whose outcome has changed; the cursor keeps the last outcomes.

    The names of the evaluations are unique within the sensor.
    """
    reported: dict[str, bool] = json.loads(cursor or "{}")
    changed = {name: each for name, each in evaluations.items() if reported.get(name) is not each.passed}
    return dg.SensorResult(
        asset_events=list(changed.values()),
        cursor=json.dumps(reported | {name: each.passed for name, each in changed.items()}),
        skip_reason=f"{len(changed)} checks have changed" if changed else "nothing has changed",
    )


def _check_fields(flow: str, result: ObjectiveResult) -> dict[str, Any]:
    metadata = {"limit": float(result.limit)}
    if result.found is not None:
        metadata["found"] = float(result.found)
    return {
        "asset_key": live_key(flow),
        "check_name": result.name,
        "passed": result.passed,
        "severity": dg.AssetCheckSeverity.WARN,
        "description": result.description,
        "metadata": metadata,
    }


def build_dead_letter_checks(
    topics: Iterable[tuple[KafkaTopic, LiveQuery]],
) -> list[dg.AssetChecksDefinition]:
    """A check for each dead-letter topic of these source topics and their queries; several may share one."""
    return [_build_check(topic, queries) for topic, queries in _share_dead_letters(topics)]


def _share_dead_letters(
    topics: Iterable[tuple[KafkaTopic, LiveQuery]],
) -> list[tuple[KafkaTopic, list[LiveQuery]]]:
    """A source topic of each name, with all queries that write its dead letters."""
    found: dict[str, tuple[KafkaTopic, list[LiveQuery]]] = {}
    for topic, query in topics:
        found.setdefault(topic.dead_letter, (topic, []))[1].append(query)
    return [*found.values()]


def _build_check(topic: KafkaTopic, queries: Collection[LiveQuery]) -> dg.AssetChecksDefinition:
    key = topic_key(topic.dead_letter)
    description = f"Topic {markdown_code(topic.name)} had no dead letter in the last hour."
    spec = dg.AssetCheckSpec(_QUIET, asset=key, description=description)

    @dg.multi_asset_check(name=check_op_name(key, _QUIET), specs=[spec])
    def quiet(flowcore: FlowcoreResource) -> Iterator[dg.AssetCheckResult]:
        yield dg.AssetCheckResult(**_dead_letter_fields(topic, queries, flowcore.settings()))

    return quiet


def build_dead_letter_sensor(plan: Plan) -> dg.SensorDefinition:
    """A sensor that evaluates the checks of a flow's dead-letter topics; it is on at first."""
    topics = _share_dead_letters(topics_with_dead_letters(plan))

    @dg.sensor(
        name=identifier(plan.flow, "dead_letters"),
        asset_selection=[topic_key(topic.dead_letter) for topic, _ in topics],
        minimum_interval_seconds=_INTERVAL_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Reports as asset checks when flow `{plan.flow}` starts or stops writing dead letters.",
    )
    def check_dead_letters(
        context: dg.SensorEvaluationContext, flowcore: FlowcoreResource
    ) -> dg.SensorResult | dg.SkipReason:
        settings = flowcore.settings()
        try:
            evaluations = {
                topic.dead_letter: dg.AssetCheckEvaluation(
                    asset_key=topic_key(topic.dead_letter),
                    check_name=_QUIET,
                    **_dead_letter_fields(topic, queries, settings),
                )
                for topic, queries in topics
            }
        except (PlanError, RunError, BrokerError) as error:
            return dg.SkipReason(str(error))
        return changed_evaluations(context.cursor, evaluations)

    return check_dead_letters


def _dead_letter_fields(
    topic: KafkaTopic, queries: Iterable[LiveQuery], settings: Settings
) -> dict[str, Any]:
    dead_letters = 0
    for servers in {output_servers(query, settings) for query in queries}:
        if partition_counts(servers, [topic.dead_letter])[topic.dead_letter] is not None:
            since = offsets_at(servers, topic.dead_letter, read_clock_ms() - _PERIOD_MS)
            ends = end_offsets(servers, topic.dead_letter)
            dead_letters += sum(ends[partition] - offset for partition, offset in since.items())
    where = f"topic {markdown_code(topic.name)}"
    return {
        "passed": not dead_letters,
        "severity": dg.AssetCheckSeverity.WARN,
        "description": f"{dead_letters:,} messages of {where} became dead letters in the last hour",
        "metadata": {"dead_letters": dead_letters},
    }
