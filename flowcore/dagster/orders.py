"""Orders: how does a run hear that it is to end, when the process that would tell it is gone?

Dagster's code server starts a run's process and signals to it. The process outlives a code server that was
killed or replaced; what a person asks for then stands in Dagster's record of runs only.
"""

import os
import time

from dagster import AssetExecutionContext, DagsterRunStatus

from flowcore.errors import RunError

__all__ = ["Orders"]

_LOOK_S = 2.0


class Orders:
    """What is asked of a run, as Dagster's record of runs says.

    Args:
        context: Of the run; made by the process that runs it.
    """

    def __init__(self, context: AssetExecutionContext) -> None:
        self._context = context
        self._starter: int | None = os.getppid()
        self._look_s = 0.0

    def is_to_end(self) -> bool:
        """Whether the run is asked to end; looks every two seconds.

        Raises:
            RunError: The supervisor took the run for dead, and may have launched another.
        """
        if time.monotonic() < self._look_s:
            return False
        self._look_s = time.monotonic() + _LOOK_S
        if self._starter is not None and os.getppid() != self._starter:
            self._context.log.warning(
                "the code server that started this run (process %d) is gone: the run goes on, and hears of a "
                "terminate within %g s",
                self._starter,
                _LOOK_S,
            )
            self._starter = None
        run = self._context.run.run_id
        now = self._context.instance.get_run_by_id(run)
        if now is not None and now.status is DagsterRunStatus.FAILURE:
            msg = f"run {run} was declared failed while it still ran: it ends, for another one may have begun"
            raise RunError(msg)
        return now is not None and now.status in (DagsterRunStatus.CANCELING, DagsterRunStatus.CANCELED)
