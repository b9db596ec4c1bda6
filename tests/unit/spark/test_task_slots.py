"""A run waits for a cluster's task slots, and reports missing ones."""

from __future__ import annotations

import pytest

from flowcore.errors import RunError
from flowcore.spark.run.task_slots import await_slots


def test_run_waits_for_slots_that_register_one_by_one() -> None:
    """Executors register after the session has started."""
    there = iter([0, 2, 4])

    await_slots(4, lambda: next(there), "spark://host:7077", patience_s=60)

    assert next(there, None) is None


def test_missing_slots_end_the_run() -> None:
    """A real-time query would otherwise wait forever without a message."""
    with pytest.raises(RunError, match=r"spark://host:7077 has 2 task slots .* hold 5 .*--mode micro-batch"):
        await_slots(5, lambda: 2, "spark://host:7077", patience_s=0)
