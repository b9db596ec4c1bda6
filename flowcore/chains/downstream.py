"""A chain that runs in the step of the keyed process whose outputs it reads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from flowcore.chains.steps import RecordDict
from flowcore.chains.task import OpenChain
from flowcore.errors import FunctionError

__all__ = ["DownstreamChain"]


@dataclass(slots=True, eq=False, kw_only=True)
class DownstreamChain(OpenChain):
    """A chain whose head is a keyed process.

    A record that the process emits is passed on as it is, or as the copy that the plan chose. It becomes a
    row only where it leaves the chain.
    """

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """The columns that leave at each outlet."""
        leaving = [step for step in self.spec.steps if step.outlet is not None]
        return {f"chain {step.outlet}": step.outlet_schema or step.schema for step in leaving}

    @property
    def refused(self) -> Mapping[int, FunctionError]:
        """The records that the last call set aside, by number."""
        return self.open().refused

    def run(
        self, inputs: Sequence[Mapping[str, Any]] | pa.RecordBatch, locate: Callable[[int], str | None]
    ) -> list[tuple[str, pa.RecordBatch, Sequence[int] | None]]:
        """The outputs: name, rows, and for each row the number of its input record, where that is known.

        Raises:
            FunctionError: A function failed, and no single record caused it.
        """
        task = self.open()
        if isinstance(inputs, pa.RecordBatch):
            found = task.run(inputs, locate)
        else:
            found = task.run_records(cast("list[RecordDict]", inputs), locate)
        return [(f"chain {each.outlet}", each.batch, each.origins) for each in found]
