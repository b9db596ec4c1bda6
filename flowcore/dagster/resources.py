"""Resources: which broker, folders and Spark does a run use?

All are documented in the UI, where a launch may change each field.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from dagster import ConfigurableResource, InitResourceContext
from dagster_pyspark import LazyPySparkResource
from dagster_pyspark.resources import spark_session_from_config
from dagster_spark.utils import flatten_dict
from pydantic import Field, PrivateAttr
from pyspark.sql import SparkSession

from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.checkpoint.plan_file import require_checkpoints_fit
from flowcore.spark.context import Context
from flowcore.spark.run.live_stage import prepare_topics
from flowcore.spark.run.session import prepare, session_config, stop
from flowcore.spark.run.task_slots import slots_needed

__all__ = ["FlowcoreResource", "KafkaResource", "ResultsResource", "SparkResource"]


class KafkaResource(ConfigurableResource):  # type: ignore[type-arg]
    """The broker, and how one speaks to it; what is not given comes from ``FLOWCORE_KAFKA_*``.

    A password is given by name, so that it is neither in code nor in a run's configuration:
    ``KafkaResource(password=EnvVar("KAFKA_PASSWORD"), ...)``.
    """

    bootstrap_servers: str | None = Field(
        default=None,
        description="Address of the Kafka broker, host:port[,host:port]. "
        "Not given: the environment variable FLOWCORE_KAFKA_BOOTSTRAP_SERVERS.",
    )
    security_protocol: str | None = Field(
        default=None,
        description="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL: encrypted if it says SSL, with a name and a "
        "password if it says SASL. Not given: FLOWCORE_KAFKA_SECURITY_PROTOCOL, else PLAINTEXT.",
    )
    sasl_mechanism: str | None = Field(
        default=None, description="How the password is proven: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."
    )
    username: str | None = Field(default=None, description="Name to log in with, best an EnvVar.")
    password: str | None = Field(default=None, description="Its password, only ever an EnvVar.")
    ca: str | None = Field(
        default=None,
        description="PEM file of who may have signed the broker's certificate. Not given: the system's.",
    )
    certificate: str | None = Field(
        default=None, description="PEM file of the client's own certificate, where the broker asks for one."
    )
    key: str | None = Field(default=None, description="PEM file of its private key (PKCS 8, not encrypted).")

    def given(self) -> dict[str, str]:
        """What is given, by flowcore's keys."""
        found = {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "kafka.security.protocol": self.security_protocol,
            "kafka.sasl.mechanism": self.sasl_mechanism,
            "kafka.sasl.username": self.username,
            "kafka.sasl.password": self.password,
            "kafka.ssl.ca": self.ca,
            "kafka.ssl.certificate": self.certificate,
            "kafka.ssl.key": self.key,
        }
        return {key: value for key, value in found.items() if value is not None}


class ResultsResource(ConfigurableResource):  # type: ignore[type-arg]
    """Where data is read from, and where results, checkpoints and the history of runs are kept."""

    data_dir: str | None = Field(
        default=None,
        description="Folder that relative source and sink paths start from. "
        "Not given: FLOWCORE_DATA_DIR, else the working directory.",
    )
    state_dir: str | None = Field(
        default=None,
        description="Folder of bounded results, checkpoints and locks; keep it. "
        "Not given: FLOWCORE_STATE_DIR, else .flowcore in the working directory.",
    )

    def given(self) -> dict[str, str]:
        """What is given, by flowcore's keys."""
        found = {"data.dir": self.data_dir, "state.dir": self.state_dir}
        return {key: value for key, value in found.items() if value is not None}


class FlowcoreResource(ConfigurableResource):  # type: ignore[type-arg]
    """The settings of a run; what is not given comes from ``FLOWCORE_*`` environment variables."""

    kafka: KafkaResource = Field(default=KafkaResource(), description="The broker.")
    results: ResultsResource = Field(default=ResultsResource(), description="Folders.")
    more: dict[str, str] = Field(
        default={},
        description="Any other setting by its key, for instance execution.trigger-interval: 2 s.",
    )

    def settings(self) -> Settings:
        """The settings of flowcore.

        Raises:
            SettingsError: A key does not exist, or a value is not of its kind.
        """
        given = {**self.kafka.given(), **self.results.given()}
        return Settings.of(self.more, given, origin="a resource of Dagster's")


class SparkResource(LazyPySparkResource):
    """A Spark session that starts when it is first used, and ends with its JVM when the run ends.

    In an asset of your own, ``spark.spark_session`` is a session as flowcore would start it.
    """

    spark_config: dict[str, Any] = Field(
        default={},
        description="Spark's configuration, over what flowcore chooses: spark.master picks a cluster.",
    )
    _slots: int = PrivateAttr(default=0)

    def context(self, plan: Plan, settings: Settings) -> Context:
        """What running a plan takes; topics are checked before Spark is started.

        Args:
            plan: What shall run.
            settings: Broker, folders and the rest; see `FlowcoreResource.settings`.

        Raises:
            BrokerError: A broker cannot be reached.
            RunError: A topic that is read does not exist.
            StateError: A checkpoint was made by a plan that this one cannot go on from.
        """
        settings = self._configured(settings)
        require_checkpoints_fit(plan, settings)
        if plan.live is not None:
            prepare_topics(plan.live, settings)
        return Context(self._session(settings, slots_needed(plan, settings)), settings, plan.flow)

    def session(self, settings: Settings) -> SparkSession:
        """A session for batch work of one's own; that of the run, if it has one."""
        return self._session(self._configured(settings), 0)

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Stop the session and its JVM."""
        del context
        self._stop()

    def _init_session(self) -> None:
        self._session(self._configured(Settings.of()), 0)

    def _configured(self, settings: Settings) -> Settings:
        given = {key: str(value) for key, value in flatten_dict(self.spark_config)}  # type: ignore[no-untyped-call]
        return replace(settings, spark={**settings.spark, **given})

    def _session(self, settings: Settings, slots: int) -> SparkSession:
        if self._spark_session is not None and slots > self._slots:
            self._stop()  # a local master cannot be given more task slots while it runs
        if self._spark_session is None:
            prepare(settings)
            with _own_interrupts():
                config = session_config(settings, slots=slots)
                self._spark_session = spark_session_from_config(config)  # type: ignore[no-untyped-call]
            self._slots = slots
        spark: SparkSession = self._spark_session
        return spark

    def _stop(self) -> None:
        spark, self._spark_session = self._spark_session, None
        if spark is not None:
            # If this thread was interrupted while it asked the JVM something, it would take the answer
            # for that of its next question. A thread of its own asks over a connection of its own.
            stopping = threading.Thread(target=stop, args=(spark,))
            stopping.start()
            stopping.join()


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep Dagster's answer to SIGINT, by which it ends a run; a starting SparkContext replaces it."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)
