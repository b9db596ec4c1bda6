"""A Spark standalone cluster on loopback: a master and two workers, each in its own processes."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flowcore.installation.jars import pyspark_jars
from flowcore.installation.java import find_java
from flowcore.kafka import supervisor
from flowcore.kafka.broker import free_port
from tests.kafka.secured_broker import SecuredBroker, secured_broker
from tests.waiting import wait_until

__all__ = ["Cluster", "Worker"]

_TIMEOUT_S = 60.0
_GRACE_S = 20.0
_CORES = 4
"""Of a worker: a real-time query holds one for each partition."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One machine of the cluster."""

    process: subprocess.Popen[bytes]
    folder: Path

    def die(self) -> None:
        """Kill the worker and its executors, as a power failure would."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster.

    Attributes:
        master: The value of ``spark.master``.
        settings: A file of settings with its secret.
        workers: The workers of the cluster.
    """

    master: str
    settings: Path
    workers: tuple[Worker, ...]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A broker that encrypts and wants a login."""
    with secured_broker(tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers; they and all their processes end with the test."""
    folder = tmp_path_factory.mktemp("cluster")
    port, ui = free_port(), free_port()
    address = ("--host", "127.0.0.1", "--port", str(port))
    master = f"spark://127.0.0.1:{port}"
    settings = _configure(folder)
    with ExitStack() as closing:
        closing.enter_context(_daemon(folder / "master", "master.Master", *address, "--webui-port", str(ui)))
        workers = []
        for number in (1, 2):
            place = folder / f"worker-{number}"
            options = ("--host", "127.0.0.1", "--cores", str(_CORES), "--memory", "1g", "--webui-port", "0")
            process = closing.enter_context(
                _daemon(place, "worker.Worker", *options, "--work-dir", str(place), master)
            )
            workers.append(Worker(process, place))
        wait_until(lambda: _alive(ui) == len(workers), "both workers are registered")
        yield Cluster(master, settings, tuple(workers))


def _configure(folder: Path) -> Path:
    """Write the configuration of the cluster's processes, and the settings of runs on it, with one secret."""
    secret = secrets.token_hex(16)
    conf = {
        "spark.authenticate": "true", "spark.authenticate.secret": secret,
        "spark.network.crypto.enabled": "true", "spark.io.encryption.enabled": "true",
    }  # fmt: skip
    (folder / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in conf.items()))
    settings = folder / "settings.toml"
    settings.write_text("".join(f'"{key}" = "{value}"\n' for key, value in conf.items()))
    return settings


@contextmanager
def _daemon(folder: Path, kind: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Spark daemon under a supervisor, so that it ends with the tests even if they are killed."""
    folder.mkdir()
    home = pyspark_jars().parent
    environment = os.environ | {
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONF_DIR": str(folder.parent),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    task = {
        "commands": [[str(home / "bin/spark-class"), f"org.apache.spark.deploy.{kind}", *options]],
        "folder": str(folder),
        "log": "log",
        "remove": False,
        "grace_s": _GRACE_S,
        "keep_open": [],
        "owner_pid": os.getpid(),
    }
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", supervisor.__file__, json.dumps(task)],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=_GRACE_S + 10)


def _alive(ui: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", ui, timeout=10)
    try:
        connection.request("GET", "/json/")
        state: dict[str, Any] = json.load(connection.getresponse())
    except (OSError, json.JSONDecodeError):  # a starting master answers with its HTML page
        return 0
    finally:
        connection.close()
    return sum(worker["state"] == "ALIVE" for worker in state["workers"])
