"""Dagster resources: the broker, the folders, all other settings, and the Spark session of a run.

The deployment sets them, in code or in the environment. The UI shows the description of each field; a launch
cannot override it (`launches`).
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from dagster_pyspark.resources import spark_session_from_config
from dagster_spark.utils import flatten_dict
from pydantic import Field, PrivateAttr
from pyspark.sql import SparkSession

from flowcore.dagster.heartbeats import heartbeat_thread
from flowcore.dagster.launches import DeployedResource
from flowcore.dagster.termination import kept_interrupt_handler
from flowcore.errors import SettingsError
from flowcore.planner.plan import Plan
from flowcore.settings import FILE_SUFFIX, Settings, refuse_secrets, secret_keys
from flowcore.spark.checkpoint.plan_file import require_checkpoints_fit
from flowcore.spark.context import Context
from flowcore.spark.run.jvm import start_jvm
from flowcore.spark.run.live_settings import require_live_settings
from flowcore.spark.run.live_topics import prepare_topics, require_schemas
from flowcore.spark.run.private import prepare_state_folder, private_files
from flowcore.spark.run.session import prepare_process, session_config, stop_session
from flowcore.spark.run.task_slots import slots_needed

__all__ = ["FlowcoreResource", "KafkaResource", "ResultsResource", "SparkResource", "refuse_literal_secrets"]

_SECRET_FIELDS = ("password", "key_password")
_READERS = "everyone who sees Dagster's UI"


class KafkaResource(DeployedResource):
    """The broker and its security; unset fields come from the environment variables ``FLOWCORE_KAFKA_*``.

    Pass a password by the name of its variable, so that neither code nor run configuration contains it:
    ``KafkaResource(password=EnvVar("KAFKA_PASSWORD"), ...)``.
    """

    bootstrap_servers: str | None = Field(
        default=None,
        description="Address of the Kafka broker, host:port[,host:port]. "
        "Default: the environment variable FLOWCORE_KAFKA_BOOTSTRAP_SERVERS.",
    )
    security_protocol: str | None = Field(
        default=None,
        description="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL: SSL encrypts, SASL logs in with a name and "
        "a password, or a token. Default: FLOWCORE_KAFKA_SECURITY_PROTOCOL, else PLAINTEXT.",
    )
    sasl_mechanism: str | None = Field(
        default=None, description="SASL mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER."
    )
    username: str | None = Field(default=None, description="User name, preferably an EnvVar.")
    password: str | None = Field(default=None, repr=False, description="The password; always pass an EnvVar.")
    password_file: str | None = Field(
        default=None, description="File with the password, which is read at each start; instead of password."
    )
    ca: str | None = Field(
        default=None,
        description="PEM file of authorities that sign the broker's certificate. Default: the system's.",
    )
    certificate: str | None = Field(
        default=None, description="PEM file of the client's certificate, if the broker requires one."
    )
    key: str | None = Field(default=None, description="PEM file of its private key (PKCS 8).")
    key_password: str | None = Field(
        default=None, repr=False, description="Password of an encrypted private key; always pass an EnvVar."
    )
    token_url: str | None = Field(
        default=None, description="OAUTHBEARER: where the issuer gives tokens for client credentials."
    )
    token_scope: str | None = Field(default=None, description="OAUTHBEARER: the scope that is asked for.")
    token_ca: str | None = Field(
        default=None, description="OAUTHBEARER: PEM file of authorities that sign the issuer's certificate."
    )

    def refuse_literal_secrets(self) -> None:
        """Refuse a password that is a text and not the name of a variable.

        Raises:
            SettingsError: A field has such a text; the message has the field's name only.
        """
        for name in _SECRET_FIELDS:
            if getattr(self, name) is None or isinstance(getattr(self, name), dg.EnvVar):
                continue
            msg = (
                f"the resource field `{name}` of KafkaResource is a text, and not the name of a variable: "
                f"Dagster would keep it in its database, and {_READERS} could read it; pass EnvVar('...')"
            )
            raise SettingsError(msg)

    def settings(self) -> dict[str, str]:
        """The fields that are set, by flowcore's setting keys."""
        found = {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "kafka.security.protocol": self.security_protocol,
            "kafka.sasl.mechanism": self.sasl_mechanism,
            "kafka.sasl.username": self.username,
            "kafka.sasl.password": self.password,
            "kafka.sasl.password.file": self.password_file,
            "kafka.ssl.ca": self.ca,
            "kafka.ssl.certificate": self.certificate,
            "kafka.ssl.key": self.key,
            "kafka.ssl.key-password": self.key_password,
            "kafka.sasl.oauthbearer.token.endpoint.url": self.token_url,
            "kafka.sasl.oauthbearer.scope": self.token_scope,
            "kafka.sasl.oauthbearer.ca": self.token_ca,
        }
        return {key: value for key, value in found.items() if value is not None}


class ResultsResource(DeployedResource):
    """The folders of input data and of results, checkpoints and progress history."""

    data_dir: str | None = Field(
        default=None,
        description="Folder to which source and sink paths are relative. "
        "Default: FLOWCORE_DATA_DIR, else the working directory.",
    )
    state_dir: str | None = Field(
        default=None,
        description="Persistent folder of bounded results, checkpoints and locks. "
        "Default: FLOWCORE_STATE_DIR, else .flowcore in the working directory.",
    )

    def settings(self) -> dict[str, str]:
        found = {"data.dir": self.data_dir, "state.dir": self.state_dir}
        return {key: value for key, value in found.items() if value is not None}


class FlowcoreResource(DeployedResource):
    """The settings of a run; unset ones come from the environment variables ``FLOWCORE_*``."""

    kafka: KafkaResource = Field(default=KafkaResource(), description="The broker.")
    results: ResultsResource = Field(default=ResultsResource(), description="Folders.")
    more: dict[str, str] = Field(
        default={}, description="Any other setting by its key, for instance execution.trigger-interval: 2 s."
    )

    def refuse_literal_secrets(self) -> None:
        """Refuse a secret in ``more``, as a text or not.

        Raises:
            SettingsError: It has one; the message has its key only.
        """
        refuse_secrets(self.more, secret_keys(), "the resource field `more`", _READERS)

    def settings(self) -> Settings:
        """The resulting settings of flowcore.

        Raises:
            SettingsError: A key does not exist, a value is invalid, or ``more`` has a secret.
        """
        self.refuse_literal_secrets()
        typed = {**self.kafka.settings(), **self.results.settings()}
        return Settings.of(self.more, typed, origin="a resource of Dagster's")


class SparkResource(DeployedResource, LazyPySparkResource):
    """A Spark session that starts at its first use; it and its JVM end with the run.

    Your own assets can use ``spark.spark_session``, which has flowcore's configuration.
    """

    spark_config: dict[str, Any] = Field(
        default={},
        description="Spark configuration that overrides flowcore's, for instance spark.master of a cluster.",
    )
    _slots: int = PrivateAttr(default=0)
    _private: ExitStack = PrivateAttr(default_factory=ExitStack)
    _sends_heartbeats: bool = PrivateAttr(default=False)

    def refuse_literal_secrets(self) -> None:
        """Refuse a secret in ``spark_config``.

        Raises:
            SettingsError: It has one; the message has its key only.
        """
        refuse_secrets(self._overrides(), (), "the resource field `spark_config`", _READERS)

    def send_heartbeats(self, instance: dg.DagsterInstance, run_id: str) -> None:
        """Renew the heartbeat of the run from now to its end, also during checks that the project adds."""
        if not self._sends_heartbeats:
            self._sends_heartbeats = True
            self._private.enter_context(heartbeat_thread(instance, run_id))

    def context(self, plan: Plan, settings: Settings) -> Context:
        """Prepare the execution of a plan; topics are checked before Spark is started.

        Raises:
            SettingsError: With these settings live queries could never run; or `ConfigurationError`.
            BrokerError: A broker cannot be reached.
            RunError: A source topic does not exist.
            StateError: A checkpoint belongs to other topics, or to a plan that is not compatible.
            LostRecordsError: A topic has removed records that were not read.
            RegistryError: The schema registry refuses, or its schemas do not fit a topic.
        """
        settings = self._configured(settings)
        self._private.enter_context(private_files(settings.umask))
        prepare_state_folder(settings.state_dir)
        require_live_settings(plan, settings)
        require_checkpoints_fit(plan, settings)
        partitions = prepare_topics(plan, settings)
        schemas = require_schemas(plan, settings)
        spark = self._session(settings, slots_needed(plan, settings, partitions))
        return Context(spark, settings, plan.flow, schemas=schemas)

    def session(self, settings: Settings) -> SparkSession:
        """The run's session, for batch work; it is started if necessary."""
        return self._session(self._configured(settings), 0)

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop the session and its JVM."""
        del context
        self._stop()
        self._private.close()

    def _init_session(self) -> None:
        self._session(self._configured(Settings.of()), 0)

    def _configured(self, settings: Settings) -> Settings:
        self.refuse_literal_secrets()
        overrides = {key: str(value) for key, value in self._overrides().items()}
        return replace(settings, spark={**settings.spark, **overrides})

    def _overrides(self) -> dict[str, Any]:
        return dict(flatten_dict(self.spark_config))  # type: ignore[no-untyped-call]

    def _session(self, settings: Settings, slots: int) -> SparkSession:
        if self._spark_session is not None and slots > self._slots:
            self._stop()  # a local master cannot be given more task slots while it runs
        if self._spark_session is None:
            scratch = prepare_process(settings)
            with kept_interrupt_handler():
                config = session_config(settings, slots=slots, scratch=scratch)
                start_jvm(config, settings.umask)
                self._spark_session = spark_session_from_config(config)  # type: ignore[no-untyped-call]
            self._slots = slots
        spark: SparkSession = self._spark_session
        return spark

    def _stop(self) -> None:
        spark, self._spark_session = self._spark_session, None
        if spark is not None:
            # If this thread was interrupted during a request to the JVM, it would take the response for that
            # of its next request. A new thread has its own connection.
            stopping = threading.Thread(target=stop_session, args=(spark,))
            stopping.start()
            stopping.join()


def refuse_literal_secrets(flowcore: FlowcoreResource, spark: SparkResource) -> None:
    """Refuse secrets in resources before a run: Dagster stores the values of resources with each job.

    A mistyped key may be that of a secret, so unknown keys are refused, too.

    Raises:
        SettingsError: A field has a secret, or ``more`` has a key that does not exist.
    """
    for resource in (flowcore, flowcore.kafka, spark):
        resource.refuse_literal_secrets()
    # Of a variable Dagster stores the name, and of a secret in a file its path: both are read in the run.
    files = {f"{key}{FILE_SUFFIX}" for key in secret_keys()}
    literal = {
        key: value
        for key, value in flowcore.more.items()
        if key not in files and not isinstance(value, dg.EnvVar)
    }
    Settings.of(literal, environment={}, origin="the resource field `more`")
