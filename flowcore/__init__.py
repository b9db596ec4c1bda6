"""Stream processing with Flink's semantics on Spark, declared in Python.

Importing this package starts no JVM and imports no Spark.
"""

from flowcore.graph.connectors import Csv, Json, KafkaTopic, Parquet, from_frame
from flowcore.graph.flow import Flow, Stream
from flowcore.graph.schema import Schema

__all__ = ["Csv", "Flow", "Json", "KafkaTopic", "Parquet", "Schema", "Stream", "from_frame"]
