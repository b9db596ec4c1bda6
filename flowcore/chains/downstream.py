"""A chain that runs in the step of the keyed process whose outputs it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa

from flowcore.chains.steps import ChainSpec, RecordDict
from flowcore.chains.task import ChainTask
from flowcore.errors import FunctionError
from flowcore.settings import CheckMode

__all__ = ["DownstreamChain"]


@dataclass(slots=True, kw_only=True)
class DownstreamChain:
    """A chain whose head is a keyed process.

    A record that the process emits is passed on as it is, or as the copy that the plan chose. It becomes a
    row only where it leaves the chain.

    Attributes:
        isolate_failures: Set records aside for which a function fails.
    """

    spec: ChainSpec
    check: CheckMode = "off"
    isolate_failures: bool = False
    _task: ChainTask | None = field(default=None, repr=False)
    _open: ExitStack = field(default_factory=ExitStack, repr=False)

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """The columns that leave at each outlet."""
        leaving = [step for step in self.spec.steps if step.outlet is not None]
        return {f"chain {step.outlet}": step.outlet_schema or step.schema for step in leaving}

    @property
    def refused(self) -> Mapping[int, FunctionError]:
        """The records that the last call set aside, by number."""
        return {} if self._task is None else self._task.refused

    def run(
        self, inputs: Sequence[Mapping[str, Any]] | pa.RecordBatch, locate: Callable[[int], str | None]
    ) -> list[tuple[str, pa.RecordBatch, Sequence[int] | None]]:
        """The outputs: name, rows, and for each row the number of its input record, where that is known.

        Raises:
            FunctionError: A function failed, and no single record caused it.
        """
        if self._task is None:
            task = ChainTask(
                self.spec, indexed=True, check=self.check, isolate_failures=self.isolate_failures
            )
            self._open.enter_context(task.running())
            self._task = task
        if isinstance(inputs, pa.RecordBatch):
            found = self._task.run(inputs, locate)
        else:
            found = self._task.run_records(cast("list[RecordDict]", inputs), locate)
        return [(f"chain {each.outlet}", each.batch, each.origins) for each in found]

    def close(self) -> None:
        """Close the functions; the next run opens them again."""
        self._task = None
        self._open.close()
