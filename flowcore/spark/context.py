"""Context of one run of a flow: the Spark session, the settings, and the addresses of data and brokers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from flowcore.api.connectors import KafkaTopic
from flowcore.errors import RunError
from flowcore.kafka.security import BrokerAddress, Security
from flowcore.settings import Settings

__all__ = ["Context", "broker_of", "path_of"]


@dataclass(frozen=True, slots=True)
class Context:
    """One run of one flow."""

    spark: SparkSession
    settings: Settings
    flow: str

    @property
    def log(self) -> str:
        """Where Spark's own log is."""
        return str(self.settings.state_dir.absolute() / "spark.log")

    def path(self, given: str) -> str:
        """Where a source's or sink's path is; an address such as ``s3a://`` stays as it is."""
        return path_of(given, self.settings)

    def servers(self, topic: KafkaTopic) -> str:
        """The broker of a topic.

        Raises:
            RunError: Neither the topic nor the settings name one.
        """
        return broker_of(topic, self.settings)


def path_of(given: str, settings: Settings) -> str:
    """Where a source's or sink's path is; an address such as ``s3a://`` stays as it is."""
    return given if "://" in given else str(Path(settings.data_dir).absolute() / given)


def broker_of(topic: KafkaTopic, settings: Settings) -> str:
    """The address of a topic's broker; security is the settings', and only for the settings' broker.

    Raises:
        RunError: Neither the topic nor the settings name one.
        SettingsError: The settings of security do not fit together.
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
