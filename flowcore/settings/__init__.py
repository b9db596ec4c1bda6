"""Settings: everything about a run that is not part of the flow.

Each has one key, written as users of Flink and Spark would expect it. They are read, later ones
winning, from defaults, a TOML file, environment variables (``kafka.bootstrap.servers`` is
``FLOWCORE_KAFKA_BOOTSTRAP_SERVERS``, or a variable of exactly that name) and ``--set key=value``. Keys
that begin with ``spark.`` go to Spark as they are: a cluster is chosen by ``spark.master``, never in code.
"""

from __future__ import annotations

from flowcore.durations import parse_duration
from flowcore.settings.sources import FILE_VARIABLE
from flowcore.settings.typed import Settings, keys

__all__ = ["FILE_VARIABLE", "Settings", "keys", "parse_duration"]
