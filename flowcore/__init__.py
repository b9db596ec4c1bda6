"""Stream processing with Flink's semantics on Spark, declared in Python.

Importing this package starts no JVM and imports no Spark.
"""

from flowcore.graph.attributes import OperatorAttributes, OperatorAttributesBuilder
from flowcore.graph.connectors import Csv, Json, KafkaTopic, Parquet, from_frame
from flowcore.graph.flow import Flow
from flowcore.graph.functions import RichFunction
from flowcore.graph.schema import Schema
from flowcore.graph.stream import Stream
from flowcore.watermarks import bounded_out_of_orderness, monotonous, no_watermarks, punctuated

__all__ = [
    "Csv",
    "Flow",
    "Json",
    "KafkaTopic",
    "OperatorAttributes",
    "OperatorAttributesBuilder",
    "Parquet",
    "RichFunction",
    "Schema",
    "Stream",
    "bounded_out_of_orderness",
    "from_frame",
    "monotonous",
    "no_watermarks",
    "punctuated",
]
