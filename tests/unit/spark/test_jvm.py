"""Where the JVM of a run listens, by the environment in which it is started."""

from __future__ import annotations

import os
from typing import Any

import pytest
from pyspark import SparkContext

from flowcore.errors import SettingsError
from flowcore.spark.run import jvm

VARIABLE = "SPARK_LOCAL_IP"


def _variable_at_the_start(monkeypatch: pytest.MonkeyPatch, config: dict[str, str]) -> str | None:
    """Its value for the JVM; `tests/kafka/test_secrets.py` sees the ports of a real one."""
    seen: list[str | None] = []

    def launch(*_: Any) -> None:
        seen.append(os.environ.get(VARIABLE))

    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", lambda gateway: gateway)
    monkeypatch.setattr(jvm, "launch_gateway", launch)
    jvm.start_jvm(config, 0o077)
    (found,) = seen
    return found


@pytest.mark.parametrize("config", [{}, {"spark.master": "local[4]"}])
def test_jvm_on_this_machine_listens_on_loopback(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, str]
) -> None:
    """Its UI too, whose address has no option; other processes of the program keep their environment."""
    monkeypatch.delenv(VARIABLE, raising=False)

    assert _variable_at_the_start(monkeypatch, config) == "127.0.0.1"
    assert VARIABLE not in os.environ


def test_address_of_the_user_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who opens the UI to others has chosen this."""
    monkeypatch.setenv(VARIABLE, "10.1.2.3")

    assert _variable_at_the_start(monkeypatch, {"spark.master": "local[*]"}) == "10.1.2.3"
    assert os.environ[VARIABLE] == "10.1.2.3"


@pytest.mark.parametrize("master", ["spark://host:7077", "k8s://https://host:6443", "yarn"])
def test_driver_of_a_cluster_is_reached_by_its_executors(
    monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    """They run elsewhere, so it cannot be on loopback."""
    monkeypatch.delenv(VARIABLE, raising=False)

    assert _variable_at_the_start(monkeypatch, {"spark.master": master}) is None


def test_secrets_are_not_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither Spark's own, nor what the user's pattern hides by key or value; the JVM's options have to."""
    config = {
        "spark.master": "local[2]",
        "spark.authenticate.secret": "a",
        "spark.kafka.clusters.a.kafka.sasl.jaas.config": "b",
        "spark.my.uri": "amqp://ann:c@host",
        "spark.lake.pin": "d",
        "spark.lake.note": "pin-e",
        "spark.driver.extraJavaOptions": "-Dpin=f",
        "spark.jars.repositories": "https://ann:g@host/maven",
    }
    config |= jvm.redaction({"spark.redaction.regex": "pin"})
    seen: list[dict[str, str]] = []

    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", lambda gateway: gateway)
    monkeypatch.setattr(jvm, "launch_gateway", lambda conf, _: seen.append(dict(conf.getAll())))
    jvm.start_jvm(config, 0o077)

    (found,) = seen
    shown = {"spark.master", "spark.driver.extraJavaOptions", "spark.jars.repositories"}
    assert {key: config[key] for key in shown} == found


def test_pattern_of_the_user_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it should hide would be shown."""
    with pytest.raises(SettingsError, match=r"spark.redaction.regex='\(' is not a pattern"):
        _variable_at_the_start(monkeypatch, jvm.redaction({"spark.redaction.regex": "("}))
