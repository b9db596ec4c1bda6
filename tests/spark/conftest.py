"""Fixtures for live sessions, and for bounded flows over small tables, which DuckDB can compute too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flowcore import Flow
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.results.manifest import Manifest
from flowcore.spark.run.bounded_stages import StageProgress
from flowcore.spark.run.flow import SilentListener, run_plan
from flowcore.spark.run.session import live_session

Run = Callable[..., list[tuple[Manifest, bool]]]
Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def live(spark: SparkSession) -> SparkSession:
    """A session with the configuration of live queries."""
    return live_session(spark, Settings.of({}, environment={}))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings with the data and state folders of one test."""
    return Settings.of({"data.dir": tmp_path, "state.dir": tmp_path / "state"}, environment={})


@pytest.fixture
def context(spark: SparkSession, settings: Settings) -> Context:
    """The shared session with the folders of one test."""
    return Context(spark, settings, "f")


@pytest.fixture
def run(context: Context) -> Run:
    """Run a flow's bounded stages; return each manifest, and whether the stage ran or was up to date."""

    class Results(SilentListener):
        def __init__(self) -> None:
            self.done: list[tuple[Manifest, bool]] = []

        def stage_changed(self, progress: StageProgress) -> None:
            if progress.manifest is not None:
                self.done.append((progress.manifest, progress.fresh))

    def run_flow(flow: Flow, *, refresh: bool = False) -> list[tuple[Manifest, bool]]:
        results = Results()
        plan = replace(plan_flow(flow, settings=context.settings), live=None)
        run_plan(plan, context, refresh=refresh, listener=results)
        return results.done

    return run_flow


@pytest.fixture
def rows(tmp_path: Path) -> Callable[[str], Rows]:
    """Query DuckDB, with the test's folder as ``{dir}``; rows are sorted."""

    def ask(query: str) -> Rows:
        with duckdb.connect() as connection:
            found = connection.execute(query.replace("{dir}", str(tmp_path))).fetchall()
        return sorted(found, key=lambda row: [(value is not None, value) for value in row])

    return ask


@pytest.fixture
def tables(tmp_path: Path) -> None:
    """Tables ``sales`` and ``shops`` with keys that repeat, have no partner, or are null."""
    sales = {
        "id": list(range(12)),
        "shop": ["a", "b", "a", None, "c", "b", "zz", "a", None, "d", "d", "c"],
        "region": [1, 1, 2, 1, None, 2, 1, 1, 2, 2, 2, 1],
        "price": [10.0, 20.5, 5.0, 7.0, 3.25, None, 8.0, 10.0, 1.0, 2.0, 2.0, 99.0],
    }
    shops = {
        "name": ["a", "b", "b", "d", None, "unused"],
        "area": [1, 1, 2, 2, 1, 9],
        "city": ["Bern", "Basel", "Brig", None, "Nowhere", "Chur"],
    }
    for name, table in (("sales", sales), ("shops", shops)):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table(table), tmp_path / name / "part-0.parquet")
