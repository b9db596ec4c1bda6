"""A run needs the files of its sources before it needs Spark."""

from pathlib import Path
from typing import NoReturn

import pytest

from flowcore import Csv, Flow, Parquet
from flowcore.errors import RunError
from flowcore.settings import Settings
from flowcore.spark.run import flow as runs

SCHEMA = "item STRING, price DOUBLE"


class StartedError(Exception):
    """Spark was about to start."""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A folder for data and state, where Spark does not start."""

    def start(*_: object, **__: object) -> NoReturn:
        raise StartedError

    monkeypatch.setattr(runs, "session", start)
    return Settings.of({"data.dir": tmp_path, "state.dir": tmp_path / "state"}, environment={})


def test_missing_file_is_found_before_spark_starts(settings: Settings) -> None:
    """Its name may be a typing error, for which nobody wants to wait."""
    flow = Flow("sales")
    flow.read("sales", Csv("salse.csv", schema=SCHEMA)).write("copy", Parquet("copy"))

    with pytest.raises(RunError, match=r"source 'sales': .*/salse\.csv does not exist"):
        runs.run_flow(flow, settings)


def test_file_that_another_stage_writes_may_be_missing(settings: Settings, tmp_path: Path) -> None:
    """The stage that reads it starts when it is there."""
    (tmp_path / "sales.csv").write_text("item,price\n")
    flow = Flow("sales")
    flow.read("sales", Csv("sales.csv", schema=SCHEMA)).write("copy", Parquet("copy"))
    flow.read("copies", Parquet("copy", schema=SCHEMA)).write("again", Parquet("again"))

    with pytest.raises(StartedError):
        runs.run_flow(flow, settings)
