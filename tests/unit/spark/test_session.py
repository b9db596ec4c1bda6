"""The Spark configuration of a run, by the place where it runs."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from flowcore.errors import SettingsError
from flowcore.installation.jars import jars
from flowcore.settings import Settings
from flowcore.spark.run import session as session_module
from flowcore.spark.run.session import prepare_process, session_config, stop_session


def config(**spark: Any) -> dict[str, str]:
    return session_config(Settings.of({"spark": spark}, environment={}), slots=50)


def test_session_on_this_machine_is_on_loopback_and_ships_nothing() -> None:
    """It has the requested number of task slots."""
    found = config()

    assert found["spark.master"] == "local[50]"
    assert found["spark.ui.killEnabled"] == "false"
    assert found["spark.driver.host"] == found["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.jars" not in found
    assert found["spark.python.daemon.module"] == "flowcore.spark.run.worker_daemon"


def test_session_on_this_machine_authenticates() -> None:
    """Other users of the machine reach its ports; the JVM makes the secret, unless a user turns it off."""
    assert config()["spark.authenticate"] == "true"
    assert config(authenticate="false")["spark.authenticate"] == "false"
    assert not any("authenticate.secret" in key for key in config())


ENCRYPTION = ("spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled")


@pytest.mark.parametrize("missing", ENCRYPTION)
@pytest.mark.parametrize(
    "login", ["kafka.sasl.password", "kafka.ssl.key", "spark.kafka.clusters.b.kafka.sasl.jaas.config"]
)
def test_cluster_that_does_not_encrypt_gets_no_login(missing: str, login: str) -> None:
    """Without a login it may, and so may a session on this machine."""
    encrypted = {"spark.master": "spark://host:1", **dict.fromkeys(ENCRYPTION, "true")}
    open_ = {key: value for key, value in encrypted.items() if key != missing}

    def configure(**settings: str) -> dict[str, str]:
        return session_config(Settings.of(settings, environment={}))

    with pytest.raises(
        SettingsError, match=rf"{login} is set, and {missing} is not true on .*host:1"
    ) as raised:
        configure(**open_, **{login: "s3cret"})

    assert "s3cret" not in str(raised.value)
    assert configure(**encrypted, **{login: "s3cret"})[missing] == "true"
    assert missing not in configure(**open_)
    assert configure(**{login: "s3cret"})["spark.master"].startswith("local")


def test_session_on_a_cluster_ships_the_connector_and_the_users_jars() -> None:
    """Spark chooses the driver's address, which the executors must reach."""
    found = config(master="spark://host:7077", jars="mine.jar,other.jar")

    connector = list(map(str, jars("connector")))
    assert found["spark.master"] == "spark://host:7077"
    assert found["spark.jars"].split(",") == [*connector, "mine.jar", "other.jar"]
    assert "spark.driver.host" not in found
    assert found["spark.executor.heartbeat.maxFailures"] == "10"
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


@pytest.mark.parametrize(
    ("spark", "program"),
    [
        ({}, "worker_python.sh"),
        ({"master": "local[2]"}, "worker_python.sh"),
        ({"pyspark.python": "/opt/own-python"}, "own-python"),
        ({"master": "spark://host:7077"}, Path(sys.executable).name),
    ],
)
def test_workers_on_this_machine_start_by_the_script(
    spark: dict[str, str], program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other machines do not have it, and the user's choice takes precedence."""
    for name in ("JAVA_HOME", "PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"):
        monkeypatch.setenv(name, "")

    prepare_process(Settings.of({"spark": spark, "state.dir": tmp_path}, environment={}))

    assert Path(os.environ["PYSPARK_PYTHON"]).name == program


@pytest.mark.parametrize(
    ("module", "shown"),
    [("pyspark.sql.streaming.transform_with_state_driver_worker", ""), ("pyspark.worker", "printed\n")],
)
def test_what_sparks_worker_for_state_prints_is_not_shown(module: str, shown: str, tmp_path: Path) -> None:
    """It fills the terminal at each start of a query with state; errors are shown."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho printed; echo failed >&2")
    python.chmod(0o755)
    script = Path(session_module.__file__).with_name("worker_python.sh")

    found = subprocess.run(
        [script, "-m", module], env={"PYSPARK_DRIVER_PYTHON": str(python)},
        check=True, capture_output=True, text=True,
    )  # fmt: skip

    assert (found.stdout, found.stderr) == (shown, "failed\n")


class _EndingSession:
    """A session whose JVM got the same SIGTERM: its context has ended, and the JVM still answers."""

    stopped = False

    def stop(self) -> None:
        self.stopped = True

    @property
    def streams(self) -> object:
        java = SimpleNamespace(_target_id="o1", _gateway_client=None)
        msg = "An error occurred while calling o1.streams"
        raise Py4JJavaError(msg, java)


def test_session_whose_jvm_is_ending_too_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor's SIGTERM for the whole process group is a stop, and the next session is a new one."""
    ended: list[str] = []
    gateway = SimpleNamespace(shutdown=lambda: ended.append("gateway"), proc=None)
    monkeypatch.setattr(SparkContext, "_gateway", gateway)
    monkeypatch.setattr(SparkContext, "_jvm", object())

    ending = _EndingSession()
    stop_session(ending)  # type: ignore[arg-type]

    assert ending.stopped
    assert ended == ["gateway"]
    assert SparkContext._gateway is SparkContext._jvm is None


def test_jvm_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error that ends a run must not be replaced by one of the clean-up."""
    monkeypatch.setattr(session_module, "_JVM_ENDS_S", 0.1)
    stays = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", stays], stdin=subprocess.PIPE) as process:
        gateway = SimpleNamespace(shutdown=lambda: None, proc=process)
        monkeypatch.setattr(SparkContext, "_gateway", gateway)
        monkeypatch.setattr(SparkContext, "_jvm", object())
        try:
            stop_session(_EndingSession())  # type: ignore[arg-type]
        finally:
            ended = process.poll()
            process.kill()

    assert ended == -signal.SIGKILL
    assert SparkContext._gateway is None


def test_interrupted_calls_of_py4j_are_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Py4J reports them to the root logger with a stack trace, also those of a Ctrl-C."""
    prepare_process(Settings(state_dir=tmp_path))

    logging.getLogger().handle(_record("/site-packages/py4j/java_gateway.py", "KeyboardInterrupt while"))
    logging.getLogger().handle(_record("/flows/shop.py", "of the user"))

    assert caplog.messages == ["of the user"]


def _record(file: str, text: str) -> logging.LogRecord:
    return logging.LogRecord("root", logging.ERROR, file, 1, text, None, None)
