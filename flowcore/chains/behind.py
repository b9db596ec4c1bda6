"""Behind: how do functions run in the call of the key groups whose outputs they read?

What a keyed process puts out is handed on as it is, or as the copy that was decided; it becomes columns where
it leaves the chain, and not in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa

from flowcore.chains.reuse_check import CheckMode
from flowcore.chains.steps import ChainSpec, Record
from flowcore.chains.task import ChainTask
from flowcore.errors import FunctionError

__all__ = ["ChainBehind"]


@dataclass(slots=True, kw_only=True)
class ChainBehind:
    """A chain whose head is a keyed process.

    Attributes:
        spec: The chain.
        check: Whether functions are watched.
        lenient: Records for which a function fails are put aside.
    """

    spec: ChainSpec
    check: CheckMode = "off"
    lenient: bool = False
    _task: ChainTask | None = field(default=None, repr=False)
    _open: ExitStack = field(default_factory=ExitStack, repr=False)

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """The columns of what leaves at each outlet."""
        leaving = [step for step in self.spec.steps if step.outlet is not None]
        return {f"chain {step.outlet}": step.outlet_schema or step.schema for step in leaving}

    @property
    def refused(self) -> Mapping[int, FunctionError]:
        """Of the last call, the records that were put aside."""
        return {} if self._task is None else self._task.refused

    def run(
        self, given: Sequence[Mapping[str, Any]] | pa.RecordBatch, where: Callable[[int], str | None]
    ) -> list[tuple[str, pa.RecordBatch, Sequence[int] | None]]:
        """What comes out, by output, with the numbers of the records that each was made of, if that is known.

        Args:
            given: Records, or a batch of them.
            where: What a record was made of, by its number, for errors.

        Raises:
            FunctionError: A function failed, and that is no single record's.
        """
        task = self._opened()
        found = (
            task.run(given, where)
            if isinstance(given, pa.RecordBatch)
            else task.run_records(cast("list[Record]", given), where)
        )
        return [(f"chain {each.outlet}", each.batch, each.origins) for each in found]

    def close(self) -> None:
        """Close the functions; who runs it again opens them again."""
        self._task = None
        self._open.close()

    def _opened(self) -> ChainTask:
        if self._task is None:
            task = ChainTask(self.spec, indexed=True, check=self.check, lenient=self.lenient)
            self._open.enter_context(task.running())
            self._task = task
        return self._task
