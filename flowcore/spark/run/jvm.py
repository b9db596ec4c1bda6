"""Start the driver's JVM without a secret among its arguments, and say what Spark must not show."""

import os
from collections.abc import Mapping

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from flowcore.settings import is_spark_secret

__all__ = ["redaction", "start_jvm"]

_REDACTION = "spark.redaction.regex"
_SECRETS = "(?i)secret|password|token|access[.]?key|jaas|keystore[.]key|private key"
"""Spark's own default, and what Kafka's clients have besides: a login, and a private key as PEM text.

Spark hides an entry of a configuration, or of the options in a plan, if key or value has one of these.
"""


def redaction(given: Mapping[str, str]) -> dict[str, str]:
    """The Spark configuration for what plans, the UI and event logs hide: secrets, and what the user adds.

    Args:
        given: The user's configuration.
    """
    return {_REDACTION: f"{_SECRETS}|{given[_REDACTION]}" if _REDACTION in given else _SECRETS}


def start_jvm(config: Mapping[str, str], umask: int) -> None:
    """Start the JVM of this process unless it runs.

    Args:
        config: Spark's configuration.
        umask: Permissions that its files, and those of its Python workers, do not have.

    PySpark would put the whole configuration on its command line, which every user of the machine can read.
    The session that is made next passes secrets through the gateway, a socket that requires a token.
    """
    started = SparkContext._gateway is not None  # noqa: SLF001 - PySpark keeps it here only
    if started or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    public = SparkConf(loadDefaults=False)
    for key, value in config.items():
        if not is_spark_secret(key):
            public.set(key, value)
    SparkContext._ensure_initialized(gateway=launch_gateway(public, {"umask": umask}))  # type: ignore[no-untyped-call]  # noqa: SLF001
