"""Dead letters: was any message of a topic refused lately? An asset check, and a sensor that asks it."""

import json
import time
from collections.abc import Iterable

from dagster import (
    AssetCheckEvaluation,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    DefaultSensorStatus,
    MetadataValue,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    asset_check,
    sensor,
)

from flowcore.api.connectors import KafkaTopic
from flowcore.dagster.external_assets import dead_lettered
from flowcore.dagster.names import identifier, topic_key
from flowcore.dagster.resources import FlowcoreResource
from flowcore.errors import BrokerError, RunError
from flowcore.kafka.topics import end_offsets, offsets_at, partition_counts
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.context import broker_of

__all__ = ["dead_letter_checks", "dead_letter_sensor"]

_CHECK = "quiet"
_LATELY_MS = 3_600_000
_EVERY_S = 60


def dead_letter_checks(topics: Iterable[KafkaTopic]) -> list[AssetChecksDefinition]:
    """For each of these topics, a check of its dead letters.

    Args:
        topics: Whose bad records are put aside, by whatever flows.
    """
    return [_check(topic) for topic in {topic.dead_letter: topic for topic in topics}.values()]


def _check(topic: KafkaTopic) -> AssetChecksDefinition:
    @asset_check(
        asset=topic_key(topic.dead_letter),
        name=_CHECK,
        description=f"No message of topic `{topic.name}` was refused in the last hour.",
    )
    def quiet(flowcore: FlowcoreResource) -> AssetCheckResult:
        letters = _lately(topic, flowcore.settings())
        return AssetCheckResult(
            passed=not letters,
            severity=AssetCheckSeverity.WARN,
            description=_words(topic, letters),
            metadata={"letters": MetadataValue.int(letters)},
        )

    return quiet


def dead_letter_sensor(plan: Plan) -> SensorDefinition:
    """A sensor that answers the checks of a flow's dead letters; it is on unless a person turns it off."""
    topics = dead_lettered(plan)

    @sensor(
        name=identifier(plan.flow, "dead_letters"),
        asset_selection=[topic_key(topic.dead_letter) for topic in topics],
        minimum_interval_seconds=_EVERY_S,
        default_status=DefaultSensorStatus.RUNNING,
        description=f"Tells, as asset checks, when flow `{plan.flow}` refuses messages, and when that ends.",
    )
    def look(context: SensorEvaluationContext, flowcore: FlowcoreResource) -> SensorResult | SkipReason:
        told: dict[str, bool] = json.loads(context.cursor or "{}")
        events = []
        for topic in topics:
            try:
                letters = _lately(topic, flowcore.settings())
            except (RunError, BrokerError) as error:
                return SkipReason(str(error))
            if told.get(topic.dead_letter) is not (not letters):
                told[topic.dead_letter] = not letters
                events.append(
                    AssetCheckEvaluation(
                        asset_key=topic_key(topic.dead_letter),
                        check_name=_CHECK,
                        passed=not letters,
                        severity=AssetCheckSeverity.WARN,
                        description=_words(topic, letters),
                        metadata={"letters": MetadataValue.int(letters)},
                    )
                )
        skip = f"{len(events)} checks have news" if events else "nothing has changed"
        return SensorResult(asset_events=events, cursor=json.dumps(told), skip_reason=skip)

    return look


def _lately(topic: KafkaTopic, settings: Settings) -> int:
    servers = broker_of(topic, settings)
    if partition_counts(servers, [topic.dead_letter])[topic.dead_letter] is None:
        return 0
    since = offsets_at(servers, topic.dead_letter, time.time_ns() // 1_000_000 - _LATELY_MS)
    ends = end_offsets(servers, topic.dead_letter)
    return sum(ends[partition] - offset for partition, offset in since.items())


def _words(topic: KafkaTopic, letters: int) -> str:
    return f"{letters:,} messages of topic {topic.name!r} were refused in the last hour"
