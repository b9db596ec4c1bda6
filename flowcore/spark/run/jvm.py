"""Start the driver's JVM without secrets among its arguments, and hide secrets in what Spark shows."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from flowcore.errors import SettingsError
from flowcore.settings import SECRET_VALUES, SPARK_SECRETS, Settings, is_spark_secret, secret_keys

__all__ = ["is_submitted", "redaction", "require_encryption", "start_jvm"]

_REDACTION = "spark.redaction.regex"
_SECRETS = f"(?i){SPARK_SECRETS}|{SECRET_VALUES}"
"""Matches secrets of Spark and of Kafka's clients.

Spark hides an entry of a configuration, or of the options in a plan, if its key or value matches.
"""
_OF_LAUNCH = ("spark.driver.", "spark.jars", "spark.files", "spark.archives", "spark.master", "spark.submit.")
"""The begin of keys that have no effect unless they are on the command line of the JVM."""


def redaction(given: Mapping[str, str]) -> dict[str, str]:
    """The Spark configuration that hides secrets, and what the user adds, in plans, UI and event logs.

    Args:
        given: The user's configuration.
    """
    return {_REDACTION: f"{_SECRETS}|{given[_REDACTION]}" if _REDACTION in given else _SECRETS}


_LOCAL_IP = "SPARK_LOCAL_IP"
_ENCRYPTION = ("spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled")
"""The options that protect the login which Spark sends to executors, on the network and on their disks."""


def require_encryption(given: Mapping[str, str], settings: Settings) -> None:
    """Check that a cluster encrypts what it sends and stores, if the run has a login or a key for Kafka.

    Args:
        given: The user's configuration of Spark.

    Raises:
        SettingsError: The cluster does not.
    """
    secrets = [*secret_keys(settings), *(["kafka.ssl.key"] if settings.kafka_key else [])]
    # Logins for other clusters, of Spark's own configuration of Kafka.
    secrets += [
        key for key, value in given.items() if key.startswith("spark.kafka.") and is_spark_secret(key, value)
    ]
    missing = [key for key in _ENCRYPTION if given.get(key, "false").lower() != "true"]
    if secrets and missing:
        msg = (
            f"{' and '.join(secrets)} is set, and {', '.join(missing)} is not true on the cluster "
            f"{given.get('spark.master')}: Spark would send the login for Kafka unencrypted to executors, "
            f"or to any program that says it is one; set {' and '.join(missing)} to true (and "
            "spark.authenticate.secret on a cluster of Spark's own), or run on this machine"
        )
        raise SettingsError(msg)


def is_submitted() -> bool:
    """Whether spark-submit has started this process, and the driver's JVM before it."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def start_jvm(config: Mapping[str, str], umask: int) -> None:
    """Start the JVM of this process unless it runs.

    PySpark would put the whole configuration on the command line of the JVM, which every user of the machine
    can read. The next session passes secrets through the gateway, a socket that requires a token.

    Args:
        config: Spark's configuration.
        umask: Permissions that the files of the JVM and of its Python workers do not have.

    Raises:
        SettingsError: The user's pattern for what is hidden is not a pattern.
    """
    started = SparkContext._gateway is not None  # noqa: SLF001 - PySpark keeps it here only
    if started or is_submitted():
        return
    hidden = _of_user(config)
    public = SparkConf(loadDefaults=False)
    for key, value in config.items():
        if key.startswith(_OF_LAUNCH):
            is_hidden = is_spark_secret(key)
        else:
            is_hidden = is_spark_secret(key, value) or bool(hidden.search(key) or hidden.search(value))
        if not is_hidden:
            public.set(key, value)
    with _listening_on_loopback(config):
        gateway = launch_gateway(public, {"umask": umask})  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001


def _of_user(config: Mapping[str, str]) -> re.Pattern[str]:
    """What the user's own pattern hides; nothing without one."""
    text = config.get(_REDACTION, "").removeprefix(_SECRETS).removeprefix("|")
    try:
        return re.compile(text or "(?!)")
    except re.error as error:
        msg = (
            f"setting {_REDACTION}={text!r} is not a pattern ({error}): what it should hide would be on the "
            "command line of Spark's JVM; correct it, in what Java and Python both understand"
        )
        raise SettingsError(msg) from error


@contextmanager
def _listening_on_loopback(config: Mapping[str, str]) -> Iterator[None]:
    """Have a JVM that starts now listen on loopback only, also with its UI, if it runs all tasks itself.

    The UI has no login, and its address has no option in Spark's configuration. The executors of a cluster
    connect to other ports of the driver.
    """
    if _LOCAL_IP in os.environ or not config.get("spark.master", "local").startswith("local"):
        yield
        return
    os.environ[_LOCAL_IP] = "127.0.0.1"
    try:
        yield
    finally:
        del os.environ[_LOCAL_IP]
