"""Harnesses of windows that emit lists of their values."""

from typing import Any

from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.testing.harness import WindowHarness
from flowcore.testing.window_functions import CollectList
from flowcore.windows import Emissions, WindowConfig, WindowProcess
from flowcore.windows.triggers import Trigger

LISTS = WindowProcess(CollectList())
MAX = MAX_TIMESTAMP_MS


def harness_of(assigner: Any, trigger: Trigger | None = None, **others: Any) -> WindowHarness:
    return WindowHarness(WindowConfig(assigner=assigner, trigger=trigger, **{"function": LISTS, **others}))


def values_of(seen: Emissions) -> list[Any]:
    return [result.value for result in seen.results]
