"""The quick profile of `flowcore bench faults`: one seed of each fast scenario."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.sampling import sample

if TYPE_CHECKING:
    from tests.kafka.conftest import Live

pytestmark = pytest.mark.kafka

_BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "faults.py"


def _benchmark() -> Any:
    """The benchmark's module, as `flowcore bench` loads it."""
    spec = importlib.util.spec_from_file_location("benchmark_faults", _BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name",
    sample(["kill-between-slots", "retention-passed", "aborted-transactions"], "kill-between-slots"),
)
def test_fault_leaves_the_output_complete(name: str, live: Live, tmp_path: Path) -> None:
    """Nothing is lost, doubled or wrong; the report has what its readers expect."""
    from tests.benchmarks._faults.trial import Site  # noqa: PLC0415 - needs a JVM

    faults = _benchmark()
    ((scenario, (delivery,)),) = faults.choose_trials([name], quick=True).items()

    outcome = faults.run_scenario(scenario, 1, delivery, Site(live.servers, live.spark, tmp_path))

    assert outcome.problems == ()
    report = faults.summarize([outcome])
    found = report["scenarios"][name]
    assert (found["seeds"], found["passed"]) == (1, 1)
    assert found["deliveries"] == {delivery: {"seeds": 1, "passed": 1}}
    assert report["failed"] == []
