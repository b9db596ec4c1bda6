"""Windows: records grouped by time.

Configuration (`WindowConfig`: assigner, trigger, evictor, function), logic (`WindowOperator`) and state
(`WindowState`) are three types. The operator is pure: it gets records, watermarks and processing time, and
returns outputs. `codec` writes and reads the state. `keyed` and `columnar` are the operators of live queries.
See docs/windows.md.

Times are integer milliseconds since the epoch, UTC, in signed 64 bits.

>>> from operator import add
>>> operator = WindowOperator(WindowConfig(assigner=TumblingWindows(1000), function=WindowReduce(add)))
>>> state = WindowState()
>>> operator.process(state, [KeyedRecord("a", 2, 100), KeyedRecord("a", 3, 900)]).results
[]
>>> [(result.key, result.value) for result in operator.advance_watermark(state, 999).results]
[('a', 5)]
"""

from flowcore.windows.assigners import (
    DynamicSessionWindows,
    EndOfStreamWindows,
    GlobalWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    WindowAssigner,
)
from flowcore.windows.config import WindowConfig
from flowcore.windows.evictors import CountEvictor, DeltaEvictor, Evictor, TimeEvictor
from flowcore.windows.functions import (
    AggregateFunction,
    PlainProcess,
    ProcessFunction,
    WindowAggregate,
    WindowContext,
    WindowProcess,
    WindowReduce,
)
from flowcore.windows.operator import WindowOperator
from flowcore.windows.state import Emissions, KeyedRecord, WindowResult, WindowState
from flowcore.windows.window import TimeWindow

__all__ = [
    "AggregateFunction",
    "CountEvictor",
    "DeltaEvictor",
    "DynamicSessionWindows",
    "Emissions",
    "EndOfStreamWindows",
    "Evictor",
    "GlobalWindows",
    "KeyedRecord",
    "PlainProcess",
    "ProcessFunction",
    "SessionWindows",
    "SlidingWindows",
    "TimeEvictor",
    "TimeWindow",
    "TumblingWindows",
    "WindowAggregate",
    "WindowAssigner",
    "WindowConfig",
    "WindowContext",
    "WindowOperator",
    "WindowProcess",
    "WindowReduce",
    "WindowResult",
    "WindowState",
]
