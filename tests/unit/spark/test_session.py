"""The Spark configuration of a run, by the place where it runs."""

from __future__ import annotations

from typing import Any

import pytest

from flowcore.installation.jars import jars
from flowcore.settings import Settings
from flowcore.spark.run.session import session_config


def config(**spark: Any) -> dict[str, str]:
    return session_config(Settings.of({"spark": spark}, environment={}), slots=50)


def test_session_on_this_machine_is_on_loopback_and_ships_nothing() -> None:
    """It has the requested number of task slots."""
    found = config()

    assert found["spark.master"] == "local[50]"
    assert found["spark.driver.host"] == found["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.jars" not in found
    assert found["spark.python.daemon.module"] == "flowcore.spark.run.worker_daemon"


def test_session_on_a_cluster_ships_the_connector_and_the_users_jars() -> None:
    """Spark chooses the driver's address, which the executors must reach."""
    found = config(master="spark://host:7077", jars="mine.jar,other.jar")

    connector = list(map(str, jars("connector")))
    assert found["spark.master"] == "spark://host:7077"
    assert found["spark.jars"].split(",") == [*connector, "mine.jar", "other.jar"]
    assert "spark.driver.host" not in found
    assert "spark.python.daemon.module" not in found


def test_session_ships_nothing_to_executors_that_have_the_connector() -> None:
    """An image may contain the connector."""
    found = config(**{"master": "k8s://https://host", "executor.extraClassPath": "/opt/connector/*"})

    assert "spark.jars" not in found


@pytest.mark.parametrize("short", [True, False], ids=["short", "long"])
def test_executors_compile_quickly_where_the_driver_does(*, short: bool) -> None:
    """A test on a cluster waits for both."""
    settings = Settings.of({"execution.short-lived": short, "spark.master": "spark://host:1"}, environment={})
    found = session_config(settings)

    quick = "-XX:TieredStopAtLevel=1"
    assert (quick in found["spark.executor.extraJavaOptions"]) is short
    assert (quick in found["spark.driver.extraJavaOptions"]) is short
    assert "-Dorg.apache.avro.limits.bytes.maxLength" in found["spark.executor.extraJavaOptions"]
