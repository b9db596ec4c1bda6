"""Stream processing with Flink's semantics on Spark, declared in Python.

Importing this package starts no JVM and imports no Spark. A name is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowcore.api.attributes import OperatorAttributes, OperatorAttributesBuilder
    from flowcore.api.connectors import Csv, Json, KafkaTopic, Parquet, from_frame
    from flowcore.api.flow import Flow, Stream
    from flowcore.api.functions import RichFunction
    from flowcore.api.schema import Schema
    from flowcore.api.window_assigners import EndOfStream, Global, Session, Sliding, Tumbling
    from flowcore.process import KeyedProcessFunction
    from flowcore.watermarks import (
        bounded_out_of_orderness,
        monotonous,
        no_watermarks,
        periodic,
        punctuated,
    )

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

_MODULES = {
    "api.attributes": ("OperatorAttributes", "OperatorAttributesBuilder"),
    "api.connectors": ("Csv", "Json", "KafkaTopic", "Parquet", "from_frame"),
    "api.flow": ("Flow", "Stream"),
    "api.functions": ("RichFunction",),
    "api.schema": ("Schema",),
    "api.window_assigners": ("EndOfStream", "Global", "Session", "Sliding", "Tumbling"),
    "process": ("KeyedProcessFunction",),
    "watermarks": ("bounded_out_of_orderness", "monotonous", "no_watermarks", "periodic", "punctuated"),
}
_HOMES = {name: f"flowcore.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
