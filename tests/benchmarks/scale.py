"""How the cost of a batch grows with partitions, key groups, keys, state, branches and depth.

Every batch has the same number of records, whatever grows. The exponent is the slope of a straight line
through the logarithms of size and cost: 0 if the cost does not depend on the size, 1 if it is proportional.
Windows end in each batch, except where keys and state grow: there they are loaded first, and stay open until
the end, and each batch touches 1,000 of all keys. Each query is compiled anew, so its first batches are run
and not counted. The sizes take turns, upwards and downwards, since the JVM gets faster while it runs.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from flowcore.kafka.broker import EmbeddedBroker
from flowcore.settings import Settings
from pipelines.benchmark import Figures, Report, in_turn
from tests.benchmarks._scaled_query import TOUCHED, Cost, Scale, ScaledQueries

RECORDS, BATCHES, WARM_UP = 20_000, 8, 2
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Dimension:
    """What grows.

    Attributes:
        member: The member of `Scale`; its other members stay as they are.
        values: From small to large.
        unit: How much one of the values is, in the unit of the member.
    """

    member: str
    values: Sequence[int]
    unit: float = 1

    def scaled(self, base: Scale, value: int) -> Scale:
        """A scale of this size, and otherwise as it is."""
        changed: dict[str, Any] = {self.member: round(value * self.unit)}
        return replace(base, **changed)


HELD = Scale(holds=True)
STATE_KEYS = 100_000
DIMENSIONS: Mapping[str, tuple[Scale, Dimension]] = {
    "partitions": (Scale(), Dimension("partitions", (1, 8, 64, 512))),
    "key-groups": (Scale(), Dimension("key_groups", (8, 32, 128, 512))),
    "keys": (HELD, Dimension("keys", (1_000, 10_000, 100_000, 1_000_000, 10_000_000))),
    "state-mb": (
        replace(HELD, keys=STATE_KEYS), Dimension("value_bytes", (1, 16, 256, 4096), MB / STATE_KEYS)
    ),
    "branches": (Scale(), Dimension("branches", (1, 2, 4, 8, 16))),
    "depth": (Scale(), Dimension("depth", (1, 2, 3, 4))),
}  # fmt: skip


@click.command()
@click.option(
    "--dimension", "names", multiple=True, type=click.Choice([*DIMENSIONS]),
    help="What grows; may be repeated. All unless given.",
)  # fmt: skip
@click.option("--points", default=5, show_default=True, help="Only that many of the smallest values of each.")
@click.option("--records", default=RECORDS, show_default=True, help="Records of a batch.")
@click.option(
    "--batches", default=BATCHES, show_default=True, type=click.IntRange(WARM_UP + 1),
    help=f"Batches of each query; the first {WARM_UP} are not counted.",
)  # fmt: skip
@click.option(
    "--rounds", default=2, show_default=True, type=click.IntRange(1),
    help="Times that each size has its turn, in alternating order.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    names: Sequence[str], points: int, records: int, batches: int, rounds: int, *, as_json: bool
) -> None:
    r"""How the cost of a batch grows; with its exponent.

    \b
    Examples:
      flowcore bench scale
      flowcore bench scale --dimension keys --points 3 --json
    """
    found: dict[str, dict[int, list[Cost]]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="flowcore-bench-", ignore_cleanup_errors=True) as folder,
        EmbeddedBroker() as broker,
    ):
        settings = Settings.of(
            {"kafka.bootstrap.servers": broker.bootstrap_servers, "state.dir": Path(folder) / "state"}
        )
        with ScaledQueries(settings, Path(folder), records, batches) as queries:
            for name in names or DIMENSIONS:
                base, dimension = DIMENSIONS[name]
                values = dimension.values[:points]
                runs = (partial(_run, queries, dimension.scaled(base, value)) for value in values)
                found[name] = dict(zip(values, in_turn(rounds, *runs), strict=True))
    details = {name: _describe(costs) for name, costs in found.items()}
    Report(
        name="scale",
        workload=f"{batches} batches of {records:,} records, {batches - WARM_UP} counted; {rounds} rounds; "
        f"windows of built-in functions; but for what grows: {Scale()}; where keys and state grow, all are "
        f"held and a batch touches {TOUCHED:,}",
        figures=[
            Figures(f"{name} {value:,}", "s a batch", _counted(costs))
            for name, each in found.items()
            for value, costs in each.items()
        ],
        ratios={
            f"exponent of {cost} by {name}": exponent
            for name, each in details.items()
            for cost, exponent in each["exponents"].items()
        },
        verified="the counts of one key in a hundred in every window, against DuckDB",
        details={"dimensions": details},
    ).show(as_json=as_json)


def _run(queries: ScaledQueries, scale: Scale, _round: int) -> Cost:
    return queries.run(scale)


def _counted(costs: Sequence[Cost]) -> list[float]:
    """Seconds of all batches but the first ones of each query."""
    return [batch_s for cost in costs for batch_s in cost.batches_s[WARM_UP:]]


def _describe(found: Mapping[int, Sequence[Cost]]) -> dict[str, Any]:
    points = []
    for value, costs in found.items():
        held = [cost.held.members for cost in costs if cost.held is not None]
        medians = {name: statistics.median(each[name] for each in held) for name in (held[0] if held else ())}
        points.append({"value": value, "batch_s": statistics.median(_counted(costs)), **medians})
    measured = [name for name in points[0] if name != "value"]
    exponents = {
        name: fit_exponent([*found], [point[name] for point in points])
        for name in measured
        if len(points) > 1 and all(point[name] > 0 for point in points)
    }
    return {"exponent": exponents.get("batch_s"), "exponents": exponents, "points": points}


def fit_exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The exponent of the power of size that fits the costs best, by least squares of the logarithms.

    >>> round(fit_exponent([1, 10, 100], [3.0, 30.0, 300.0]), 6)
    1.0
    """
    exponent, _ = np.polynomial.Polynomial.fit(np.log(sizes), np.log(costs), 1).convert().coef[::-1]
    return float(exponent)
