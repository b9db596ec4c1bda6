"""Live sources: how is a topic read, tuned for what the query is doing?

Client settings decide more than anything else: large fetches while catching up, none of that when a
record shall pass in a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame

from flowcore.api.connectors import KafkaTopic
from flowcore.api.operators import topic_of
from flowcore.errors import PlanError
from flowcore.kafka.limits import TopicLimits
from flowcore.kafka.security import spark_login
from flowcore.planner.model import LiveQuery
from flowcore.settings import Settings
from flowcore.spark.checkpoint.offsets import offsets_json, start_offsets
from flowcore.spark.context import Context, broker_of
from flowcore.spark.topics.sinks import write_options

__all__ = ["output_servers", "read_stream", "sink_options"]

_BULK_READ = {
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    # What a batch reads is there already. But a client that has the last of it has asked for more, and until
    # the broker gives that up (after 500 ms by default) Spark's question for the end of the partition waits.
    "kafka.fetch.max.wait.ms": "10",
}
_BULK_BATCH_BYTES = 512 << 10


def read_stream(topic: KafkaTopic, query: LiveQuery, context: Context, *, events: bool) -> DataFrame:
    """The messages of a topic, and of its companion topic where ``events``, as Spark's source gives them.

    The start position counts for a new checkpoint only; later runs go on where the last one stopped.
    """
    servers = context.servers(topic)
    options = {
        **spark_login(servers),
        "subscribe": f"{topic.name},{topic.events}" if events else topic.name,
        "startingOffsets": topic.start
        if isinstance(topic.start, str)
        else offsets_json(topic, start_offsets(topic, servers)),
    }
    if topic.elements == "tagged":
        options["includeHeaders"] = "true"
    if query.mode.value != "realtime":
        options |= _BULK_READ
    if query.mode.value != "realtime" and query.batch_interval_ms is None:
        # Where results leave once in an interval, a batch takes all that has come: with bounded batches they
        # would leave more often, or input would come faster than it is read.
        options["maxOffsetsPerTrigger"] = str(context.settings.max_batch_records)
    return context.spark.readStream.format("kafka").options(**options).load()


def sink_options(query: LiveQuery, limits: Iterable[TopicLimits]) -> dict[str, str]:
    """Options of the Kafka sink, by what the topics take that a query writes to."""
    if query.mode.value == "realtime":
        return {**write_options(limits), "kafka.linger.ms": "0"}
    return {**write_options(limits, _BULK_BATCH_BYTES), "kafka.linger.ms": "50"}


def output_servers(query: LiveQuery, settings: Settings) -> str:
    """The one broker that a query writes to, dead letters included.

    Raises:
        PlanError: Its sinks are on several.
    """
    written = [topic for sink in query.sinks if (topic := topic_of(sink))]
    read = [topic for source in query.sources if (topic := topic_of(source))]
    brokers = {broker_of(topic, settings) for topic in written or read[:1]}
    if len(brokers) > 1:
        msg = (
            f"query {query.name!r} writes to the brokers {' and '.join(sorted(brokers))}: Spark's sink takes "
            "one; write to one broker, or declare two flows"
        )
        raise PlanError(msg)
    return brokers.pop()
