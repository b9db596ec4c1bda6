"""Asset checks of dead-letter topics, and the sensor that evaluates them."""

import time
from collections.abc import Iterable
from typing import Any

import dagster as dg

from flowcore.api.connectors import KafkaTopic
from flowcore.dagster.external_assets import topics_with_dead_letters
from flowcore.dagster.names import identifier, topic_key
from flowcore.dagster.resources import FlowcoreResource
from flowcore.dagster.stream_checks import changed_evaluations
from flowcore.errors import BrokerError, RunError
from flowcore.kafka.topics import end_offsets, offsets_at, partition_counts
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.context import broker_of

_CHECK = "quiet"
_PERIOD_MS = 3_600_000
_INTERVAL_S = 60


def build_dead_letter_checks(topics: Iterable[KafkaTopic]) -> list[dg.AssetChecksDefinition]:
    """A check for each dead-letter topic of these source topics; several may share one."""
    return [_build_check(topic) for topic in {topic.dead_letter: topic for topic in topics}.values()]


def _build_check(topic: KafkaTopic) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=topic_key(topic.dead_letter),
        name=_CHECK,
        description=f"Topic `{topic.name}` had no dead letter in the last hour.",
    )
    def quiet(flowcore: FlowcoreResource) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(**_check_fields(topic, flowcore.settings()))

    return quiet


def build_dead_letter_sensor(plan: Plan) -> dg.SensorDefinition:
    """A sensor that evaluates the checks of a flow's dead-letter topics; it is on at first."""
    topics = topics_with_dead_letters(plan)

    @dg.sensor(
        name=identifier(plan.flow, "dead_letters"),
        asset_selection=[topic_key(topic.dead_letter) for topic in topics],
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
                    check_name=_CHECK,
                    **_check_fields(topic, settings),
                )
                for topic in topics
            }
        except (RunError, BrokerError) as error:
            return dg.SkipReason(str(error))
        return changed_evaluations(context.cursor, evaluations)

    return check_dead_letters


def _check_fields(topic: KafkaTopic, settings: Settings) -> dict[str, Any]:
    servers, letters = broker_of(topic, settings), 0
    if partition_counts(servers, [topic.dead_letter])[topic.dead_letter] is not None:
        since = offsets_at(servers, topic.dead_letter, time.time_ns() // 1_000_000 - _PERIOD_MS)
        ends = end_offsets(servers, topic.dead_letter)
        letters = sum(ends[partition] - offset for partition, offset in since.items())
    return {
        "passed": not letters,
        "severity": dg.AssetCheckSeverity.WARN,
        "description": f"{letters:,} messages of topic {topic.name!r} became dead letters in the last hour",
        "metadata": {"letters": letters},
    }
