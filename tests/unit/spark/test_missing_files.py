"""A run needs the files of its sources before it needs Spark, and reads no other ones."""

import os
from pathlib import Path
from typing import NoReturn

import pytest

from flowcore import Csv, Flow, Parquet
from flowcore.errors import RunError
from flowcore.settings import Settings
from flowcore.spark.run import flow as runs
from flowcore.spark.topics.source_files import files_version

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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
@pytest.mark.parametrize("place", ["in", "in/day=1", "in/day=1/a.json", "there"])
def test_link_of_another_user_is_refused(place: str, tmp_path: Path) -> None:
    """Who writes input would choose which files of this machine a flow reads; own links are followed."""
    (tmp_path / "far").mkdir()
    (tmp_path / "secret.json").write_text("secret")
    (tmp_path / "far/a.json").symlink_to("../secret.json")
    (tmp_path / "there").symlink_to("far")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/day=1").symlink_to("../there")
    (tmp_path / "in").symlink_to("parts")
    path = str(tmp_path / "in")
    assert files_version("sales", path).startswith("1 files ")
    os.chown(tmp_path / place, 4711, -1, follow_symlinks=False)

    with pytest.raises(RunError, match=r"source 'sales': .* is a link of user 4711.* chown -h 0 ") as raised:
        files_version("sales", path)

    assert "secret" not in str(raised.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
def test_file_behind_a_link_of_another_user_is_refused_before_spark_starts(
    settings: Settings, tmp_path: Path
) -> None:
    """Also one that leads to nothing yet."""
    (tmp_path / "sales.csv").symlink_to("later.csv")
    os.chown(tmp_path / "sales.csv", 4711, -1, follow_symlinks=False)
    flow = Flow("sales")
    flow.read("sales", Csv("sales.csv", schema=SCHEMA)).write("copy", Parquet("copy"))

    with pytest.raises(RunError, match=r"sales\.csv is a link of user 4711"):
        runs.run_flow(flow, settings)
