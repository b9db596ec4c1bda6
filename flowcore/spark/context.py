"""Context of one run of a flow: session, settings, clock, and the addresses of data and brokers."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from flowcore.api.connectors import KafkaTopic
from flowcore.background import PeriodicThread
from flowcore.durations import read_clock_ms
from flowcore.errors import PlanError, RunError
from flowcore.kafka.security import BrokerAddress, Security
from flowcore.kafka.topic_schemas import TopicSchemas
from flowcore.planner.model import LiveQuery
from flowcore.settings import Settings
from flowcore.spark.busy_times import BusyTimes

__all__ = ["Clock", "Context", "broker_of", "names_by_broker", "output_servers", "path_of", "spark_log"]


class Clock:
    """The system's clock. A test may derive one that is moved by hand."""

    def now_ms(self) -> int:
        """The time, in milliseconds since the epoch."""
        return read_clock_ms()

    def attach(self, session: SparkSession) -> None:
        """Called with the session of live queries, before the first one is started."""

    def every(
        self, interval_s: float, name: str, work: Callable[[], object]
    ) -> AbstractContextManager[object]:
        """Repeat work until the context ends.

        Args:
            interval_s: Seconds from the end of one call to the start of the next.
            work: Function to call. An exception ends the thread, so the function handles its own.
        """
        return PeriodicThread(name, work, interval_s)


def spark_log(settings: Settings) -> str:
    """The file of Spark's own log."""
    return str(settings.state_dir.absolute() / "spark.log")


@dataclass(frozen=True, slots=True)
class Context:
    """One run of one flow."""

    spark: SparkSession
    settings: Settings
    flow: str
    clock: Clock = field(default_factory=Clock)
    schemas: TopicSchemas = field(default_factory=TopicSchemas)
    busy_times: BusyTimes = field(default_factory=BusyTimes)

    @property
    def log(self) -> str:
        """The file of Spark's own log."""
        return spark_log(self.settings)

    def path(self, given: str) -> str:
        """The path of a source or sink below data.dir; an address such as ``s3a://`` stays as it is."""
        return path_of(given, self.settings)

    def servers(self, topic: KafkaTopic) -> str:
        """The broker of a topic; see `broker_of`."""
        return broker_of(topic, self.settings)

    def readable(self, topic: KafkaTopic) -> KafkaTopic:
        """A source of a live query with the schemas of ids, if the schema registry gives them."""
        return self.schemas.readable(topic, self.settings)

    def writable(self, topic: KafkaTopic) -> KafkaTopic:
        """A sink with the id of its schema, if the schema registry gives it."""
        return self.schemas.writable(topic, self.settings)


def path_of(given: str, settings: Settings) -> str:
    """The path of a source or sink below data.dir; an address such as ``s3a://`` stays as it is."""
    return given if "://" in given else str(Path(settings.data_dir).absolute() / given)


def broker_of(topic: KafkaTopic, settings: Settings) -> str:
    """The address of a topic's broker; the security settings apply to the broker of the settings only.

    Raises:
        RunError: Neither the topic nor the settings name a broker.
        SettingsError: The security settings contradict each other.
    """
    servers = topic.servers or settings.bootstrap_servers
    if not servers:
        msg = (
            f"topic {topic.name!r} has no broker: kafka.bootstrap.servers is not set; pass --set "
            "kafka.bootstrap.servers=host:port, or set FLOWCORE_KAFKA_BOOTSTRAP_SERVERS; start one with "
            "'flowcore broker'"
        )
        raise RunError(msg)
    secured = topic.servers is None or topic.servers == settings.bootstrap_servers
    return BrokerAddress(servers, Security.of(settings)) if secured else servers


def names_by_broker(topics: Iterable[KafkaTopic], settings: Settings) -> dict[str, list[str]]:
    """The names of topics by their broker, so that one request asks a broker about all of them."""
    found: dict[str, list[str]] = {}
    for topic in topics:
        found.setdefault(broker_of(topic, settings), []).append(topic.name)
    return found


def output_servers(query: LiveQuery, settings: Settings) -> str:
    """The broker that a live query writes to, dead letters included.

    Raises:
        PlanError: The query's sinks are on several brokers.
    """
    topics = query.topics_written or query.topics_read[:1]
    brokers = {broker_of(topic, settings) for topic in topics}
    if len(brokers) > 1:
        msg = (
            f"query {query.name!r} writes to the brokers {' and '.join(sorted(brokers))}: Spark's sink takes "
            "one; write to one broker, or declare two flows"
        )
        raise PlanError(msg)
    return brokers.pop()
