"""Event time that is assigned in the middle of a live query.

Downstream, the records of a branch have another timestamp, and the number of the operator instead of that of
their source. So the partitions of the source are channels of the operator, with watermarks of their own.
"""

from __future__ import annotations

from flowcore.api.event_time import watermark_expression
from flowcore.api.operators import Read, WithEventTime
from flowcore.planner.model import LiveQuery
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.rows import (
    BAD_REASON,
    BRANCH,
    FAILED_OPERATOR,
    NEWEST,
    SOURCE,
    TIMESTAMP_MS,
    VALUE,
    RowKind,
)
from flowcore.spark.frame.sql import literal
from flowcore.spark.topics.event_times import milliseconds, require_time, too_far_ahead
from flowcore.spark.topics.side_channels import SideChannels
from flowcore.spark.topics.watermarks import newest_timestamp, observation_name, observe_watermarks

__all__ = ["assign_event_time"]


def assign_event_time(
    node: WithEventTime,
    branched: BranchedFrame,
    branch: Branch,
    *,
    query: LiveQuery,
    side_channels: SideChannels,
    number: int,
) -> None:
    """Give the records of a branch their timestamps; those without one are bad, or stop the query.

    Args:
        number: That of the operator among those that rows are from.
    """
    time, is_bad = next(branched.names), next(branched.names)
    own = branched.is_in(branch)
    text = branch.expression(node.event_time)
    require_time(branched.frame, text, node.name, node.event_time.text)
    time_ms = milliseconds(branched.frame, text)
    # Not deterministic, so that Spark does not evaluate it again in each filter.
    branched.set({time: f"CASE WHEN spark_partition_id() >= 0 AND {own} THEN {time_ms} END"})
    branched.set({is_bad: _reason(node, branched, branch, time, side_channels)})
    _refuse_bad(node, branched, branch, is_bad, query)
    own = branched.is_in(branch)
    if node in query.timestamped:
        others = TIMESTAMP_MS if TIMESTAMP_MS in branched.frame.columns else "CAST(NULL AS BIGINT)"
        branched.set({TIMESTAMP_MS: f"CASE WHEN {own} THEN {time} ELSE {others} END"})
    if side_channels.has_key_groups:
        newest = newest_timestamp(node, branch, own) if node.strategy.generates else "NULL"
        branched.set(
            {
                SOURCE: f"CASE WHEN {own} THEN {number} ELSE {SOURCE} END",
                NEWEST: f"CASE WHEN {own} THEN {newest} ELSE {NEWEST} END",
            }
        )
    if side_channels.writes_watermarks and node in query.timestamped:
        (topic,) = (each.topic for each in node.live_sources)
        partitions = side_channels.partitions[topic.name] if topic else 0
        if metrics := observe_watermarks(node, branch, partitions, own):
            branched.frame = branched.frame.observe(observation_name(node), *metrics)


def _reason(
    node: WithEventTime, branched: BranchedFrame, branch: Branch, time: str, side_channels: SideChannels
) -> str:
    """Why a record of the branch is bad; null if it is not, and for other rows."""
    missing = literal(f"has no event time: {' '.join(node.event_time.text.split())} is null")
    cases = [f"WHEN {time} IS NULL THEN {missing}"]
    if side_channels.max_ahead_ms and node.strategy.generates:
        times = [time]
        if (generated := watermark_expression(node)) is not None:
            times.append(branch.expression(generated))
        latest = f"greatest({', '.join(times)})" if len(times) > 1 else time
        is_ahead, why = too_far_ahead(latest, side_channels.max_ahead_ms)
        cases.append(f"WHEN {is_ahead} THEN {why}")
    return f"CASE WHEN {branched.is_in(branch)} THEN CASE {' '.join(cases)} END END"


def _refuse_bad(
    node: WithEventTime, branched: BranchedFrame, branch: Branch, is_bad: str, query: LiveQuery
) -> None:
    """Let bad records become dead letters, or stop the query if none can leave it."""
    (source,) = node.live_sources
    if (
        isinstance(source, Read)
        and source in query.dead_letters
        and FAILED_OPERATOR in branched.frame.columns
    ):
        ends = not any(node in chain.head.upstream for chain in query.chains)
        own = branched.is_in(branch)
        name = literal(node.name)
        branched.set(
            {
                BRANCH: f"CASE WHEN {is_bad} IS NOT NULL THEN {RowKind.BAD} ELSE {BRANCH} END",
                BAD_REASON: f"coalesce({is_bad}, {BAD_REASON})",
                FAILED_OPERATOR: f"CASE WHEN {is_bad} IS NULL THEN {FAILED_OPERATOR} ELSE {name} END",
                VALUE: f"CASE WHEN {own} AND {is_bad} IS NULL THEN NULL ELSE {VALUE} END" if ends else VALUE,
            }
        )
        return
    place = f"concat(topic, '[', partition, ']@', offset, ' ', {is_bad}, {literal(f' ({node.name})')})"
    failed = f"CAST(raise_error({place}) AS BOOLEAN)"
    branched.frame = branched.frame.where(f"CASE WHEN {is_bad} IS NOT NULL THEN {failed} ELSE true END")
