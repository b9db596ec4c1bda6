"""Stream processing with Flink's semantics on Spark, declared in Python.

Importing this package starts no JVM and imports no Spark.
"""

from flowcore.api.attributes import OperatorAttributes, OperatorAttributesBuilder
from flowcore.api.connectors import Csv, Json, KafkaTopic, Parquet, from_frame
from flowcore.api.flow import Flow, Stream
from flowcore.api.functions import RichFunction
from flowcore.api.schema import Schema
from flowcore.api.window_assigners import EndOfStream, Global, Session, Sliding, Tumbling
from flowcore.process import KeyedProcessFunction
from flowcore.watermarks import bounded_out_of_orderness, monotonous, no_watermarks, periodic, punctuated

__all__ = [
    "Csv",
    "EndOfStream",
    "Flow",
    "Global",
    "Json",
    "KafkaTopic",
    "KeyedProcessFunction",
    "OperatorAttributes",
    "OperatorAttributesBuilder",
    "Parquet",
    "RichFunction",
    "Schema",
    "Session",
    "Sliding",
    "Stream",
    "Tumbling",
    "bounded_out_of_orderness",
    "from_frame",
    "monotonous",
    "no_watermarks",
    "periodic",
    "punctuated",
]
