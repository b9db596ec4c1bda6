"""`flowcore watermarks`: the channels that hold the event time of a flow, and the reset of a channel."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from flowcore.api.flow import Flow
from flowcore.cli.flow_argument import flow_and_settings
from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.escaping import printable
from flowcore.planner import plan_flow
from flowcore.settings import Settings

if TYPE_CHECKING:
    from flowcore.spark.run.tagged_sources import TaggedSource
    from flowcore.watermarks.merge import PartitionWatermark

__all__ = ["show_time", "watermarks"]


@click.command()
@flow_and_settings
@click.option("--reset", metavar="CHANNEL", help="Let a channel hold no event time until its writer starts.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object for each channel, or source with --reset."
)
def watermarks(flow: Flow, settings: Settings, reset: str | None, *, as_json: bool) -> None:
    """Show the channels of a flow's tagged sources with their watermarks, the lowest first.

    A channel is a query that writes watermarks to the topic. The lowest one that is active holds event time.
    The command reads the checkpoints in state.dir, as of the last batch; the flow may run or not.

    --reset writes to each partition of the topic that the channel is idle, for all readers. A running flow
    takes that with its next batch. The channel counts again when its writer starts again: reset only one
    whose writer does not run.

    \b
    Examples:
      flowcore watermarks my_flows.sales:flow
      flowcore watermarks my_flows.sales:flow --json | jq 'select(.status == "active")'
      flowcore watermarks my_flows.sales:flow --reset bids-flow/bids-batches
    """
    from flowcore.spark.run.tagged_sources import read_tagged_sources, reset_channel  # noqa: PLC0415 - slow

    sources = read_tagged_sources(plan_flow(flow, settings=settings), settings)
    if reset is not None:
        for source, partitions in reset_channel(sources, reset, settings):
            topic = source.topic.name
            if as_json:
                row = {"source": source.name, "topic": topic, "channel": reset, "partitions": partitions}
                click.echo(json.dumps(row))
            else:
                where = f"{partitions} partition{'s' * (partitions != 1)} of topic {topic}"
                click.echo(printable(f"{source.name}: channel {reset} is idle in {where}"))
        return
    for source in sources:
        rows = [*_rows(source)]
        if as_json:
            for row in rows:
                click.echo(json.dumps(row))
        else:
            click.echo(_as_text(source, rows))


def _rows(source: "TaggedSource") -> Iterator[dict[str, Any]]:
    lowest_first = sorted(source.channels.items(), key=lambda each: (each[1].watermark_ms, each[0]))
    for (partition, sender), each in lowest_first:
        is_known = sender or each.watermark_ms != MIN_TIMESTAMP_MS or each.idle
        yield {
            "query": source.query,
            "source": source.name,
            "topic": source.topic.name,
            "partition": int(partition),
            "channel": sender if is_known else None,
            "watermark_ms": None if each.watermark_ms == MIN_TIMESTAMP_MS else each.watermark_ms,
            "status": _status(each),
        }


def _status(channel: "PartitionWatermark") -> str:
    if channel.watermark_ms == MAX_TIMESTAMP_MS:
        return "ended"
    return "idle" if channel.idle else "active"


def _as_text(source: "TaggedSource", rows: list[dict[str, Any]]) -> str:
    return "\n".join(map(printable, _lines(source, rows)))


def _lines(source: "TaggedSource", rows: list[dict[str, Any]]) -> Iterator[str]:
    declared = "" if source.topic.channels is None else ", declared: " + ", ".join(source.topic.channels)
    yield f"{source.name}: topic {source.topic.name}, query {source.query}{declared}"
    for row in rows:
        channel = "no channel yet" if row["channel"] is None else row["channel"] or "(no name)"
        yield f"  {row['partition']:>4}  {row['status']:<6}  {show_time(row['watermark_ms']):<24}  {channel}"
    if source.ignored:
        yield f"  {source.ignored:,} elements of further channels do not count; declare channels="


def show_time(time_ms: int | None) -> str:
    """Event time as text, also the time of an input that has ended."""
    if time_ms is None:
        return "no watermark"
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}.{time_ms % 1000:03}Z"
    except (OverflowError, ValueError):
        return "the end of time" if time_ms == MAX_TIMESTAMP_MS else f"{time_ms} ms"
