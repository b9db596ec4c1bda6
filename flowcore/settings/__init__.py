"""Settings of a run: everything that is not part of the flow.

Each setting has one key, named as in Flink and Spark. The sources, of which a later one overrides an earlier
one, are: defaults, a TOML file, environment variables (``kafka.bootstrap.servers`` is
``FLOWCORE_KAFKA_BOOTSTRAP_SERVERS``, or a variable of exactly that name), and ``--set key=value``. Keys that
begin with ``spark.`` are passed to Spark: a cluster is chosen by ``spark.master``, never in code.
"""

from flowcore.durations import parse_duration
from flowcore.settings.secrets import (
    FILE_SUFFIX,
    SECRET_VALUES,
    SPARK_SECRETS,
    is_spark_secret,
    refuse_secrets,
)
from flowcore.settings.sources import FILE_VARIABLE
from flowcore.settings.typed import CheckMode, Settings, keys, secret_keys

__all__ = [
    "FILE_SUFFIX", "FILE_VARIABLE", "SECRET_VALUES", "SPARK_SECRETS", "CheckMode", "Settings",
    "is_spark_secret", "keys", "parse_duration", "refuse_secrets", "secret_keys",
]  # fmt: skip
