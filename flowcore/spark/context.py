"""Context of one run of a flow: the Spark session, the settings, and the addresses of data and brokers."""

from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from flowcore.api.connectors import KafkaTopic
from flowcore.errors import RunError
from flowcore.kafka.security import BrokerAddress, Security
from flowcore.settings import Settings
from flowcore.spark.clock import Clock

__all__ = ["Context", "broker_of", "path_of"]


@dataclass(frozen=True, slots=True)
class Context:
    """One run of one flow."""

    spark: SparkSession
    settings: Settings
    flow: str
    clock: Clock = field(default_factory=Clock)

    @property
    def log(self) -> str:
        """The file of Spark's own log."""
        return str(self.settings.state_dir.absolute() / "spark.log")

    def path(self, given: str) -> str:
        """The path of a source or sink below data.dir; an address such as ``s3a://`` stays as it is."""
        return path_of(given, self.settings)

    def servers(self, topic: KafkaTopic) -> str:
        """The broker of a topic; see `broker_of`."""
        return broker_of(topic, self.settings)


def path_of(given: str, settings: Settings) -> str:
    """The path of a source or sink below data.dir; an address such as ``s3a://`` stays as it is."""
    return given if "://" in given else str(Path(settings.data_dir).absolute() / given)


def broker_of(topic: KafkaTopic, settings: Settings) -> str:
    """The address of a topic's broker; the security settings apply to the broker of the settings only.

    Raises:
        RunError: Neither the topic nor the settings name one.
        SettingsError: The security settings contradict each other.
    """
    servers = topic.servers or settings.bootstrap_servers
    if not servers:
        msg = (
            f"topic {topic.name!r} has no broker: kafka.bootstrap.servers is not set; pass --set "
            "kafka.bootstrap.servers=host:port, or start one with 'flowcore broker'"
        )
        raise RunError(msg)
    secured = topic.servers is None or topic.servers == settings.bootstrap_servers
    return BrokerAddress(servers, Security.of(settings)) if secured else servers
