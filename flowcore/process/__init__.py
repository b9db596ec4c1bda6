"""Keyed process functions: users' functions with access to the state and timers of a key.

Configuration (`ProcessConfig`), logic (`ProcessOperator`) and state (`ProcessState`) are three types. The
operator is pure: records, watermarks and processing time are passed in, and outputs are returned. `codec`
writes and reads the state.

Times are integer milliseconds since the epoch, UTC, in signed 64 bits.

>>> class Doubled(KeyedProcessFunction):
...     def open(self, context):
...         self.seen = context.value_state("seen", "BIGINT")
...     def process(self, record, context):
...         self.seen.set(self.seen.get(0) + 1)
...         yield {"number": record["number"] * 2, "seen": self.seen.get()}
>>> operator = ProcessOperator(ProcessConfig(function=Doubled()))
>>> records = [KeyedRecord("a", {"number": 1}), KeyedRecord("a", {"number": 2})]
>>> [result.value for result in operator.process(ProcessState(), records).results]
[{'number': 2, 'seen': 1}, {'number': 4, 'seen': 2}]
"""

from flowcore.process.current import ProcessEmissions, ProcessResult
from flowcore.process.function import KeyedProcessFunction, ProcessContext
from flowcore.process.opening import OpenContext
from flowcore.process.operator import ProcessConfig, ProcessOperator
from flowcore.process.state import ProcessState
from flowcore.windows.state import KeyedRecord

__all__ = [
    "KeyedProcessFunction",
    "KeyedRecord",
    "OpenContext",
    "ProcessConfig",
    "ProcessContext",
    "ProcessEmissions",
    "ProcessOperator",
    "ProcessResult",
    "ProcessState",
]
