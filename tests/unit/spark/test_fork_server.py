"""Processes of Python that Spark starts are forked from a server, with all that a new process would have."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from flowcore.spark.run import fork_client
from tests.waiting import wait_until

_PROGRAM = """
import json, os, sys
import pandas
print(json.dumps({"pid": os.getpid(), "arguments": sys.argv[1:], "name": os.environ.get("NAME"),
                  "main": __name__}), flush=True)
print("an error", file=sys.stderr, flush=True)
sys.exit(len(sys.stdin.read()))
"""
"""It says what it is, reads its standard input until the end, and ends with the number of its characters."""


class Client:
    """A process that Spark would start."""

    def __init__(self, folder: Path, module: str, *arguments: str, **environment: str) -> None:
        known = {"PYSPARK_DRIVER_PYTHON": sys.executable, fork_client.SERVER: str(folder / "fork")}
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", fork_client.__file__, "-m", module, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": f"{folder}:{Path(__file__).parents[3]}", **known, **environment},
        )  # fmt: skip

    def first(self) -> Mapping[str, Any]:
        """What it says of itself, with its parent."""
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return {**found, "parent": psutil.Process(found["pid"]).ppid()}

    def end(self, text: str = "") -> tuple[str, int]:
        """Give it a text, and return what it wrote as an error, and its exit code."""
        _, errors = self.process.communicate(text, timeout=60)
        return errors, self.process.returncode


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forks")
    for name in ("pool_daemon", "single"):
        (folder / f"{name}.py").write_text(_PROGRAM)
    return folder


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[Mapping[str, Any]]:
    """A first pool, which starts the server."""
    client = Client(folder, "pool_daemon")
    yield {**client.first(), "client": client.process.pid}
    client.end()


def test_a_process_is_as_if_it_were_started(folder: Path, pool: Mapping[str, Any]) -> None:
    """Its arguments, variables, standard streams and exit code are those of the process that asks for it."""
    client = Client(folder, "single", "one", "two words", NAME="ä")

    found = client.first()
    errors, code = client.end("12345")

    assert found["parent"] == pool["parent"]
    assert {**found, "pid": 0, "parent": 0} == {
        "pid": 0, "parent": 0, "arguments": ["one", "two words"], "name": "ä", "main": "__main__",
    }  # fmt: skip
    assert (errors, code) == ("an error\n", 5)


def test_the_server_is_below_the_process_that_needs_it_first(pool: Mapping[str, Any]) -> None:
    """So that it counts where the memory of a JVM with all its processes is measured."""
    assert psutil.Process(pool["parent"]).ppid() == pool["client"]


@pytest.mark.usefixtures("pool")
def test_a_process_that_spark_ends_is_ended(folder: Path) -> None:
    """Spark sends SIGTERM to the process that it has started."""
    client = Client(folder, "single")
    pid = client.first()["pid"]

    client.process.send_signal(signal.SIGTERM)
    client.process.wait(60)  # before its standard input ends, which would end the process, too

    assert client.end()[1] == 256 - signal.SIGTERM
    assert not psutil.pid_exists(pid)


@pytest.mark.usefixtures("pool")
def test_a_client_that_is_killed_takes_its_process_along(folder: Path) -> None:
    """Its standard input ends then, as Spark's daemon expects it."""
    client = Client(folder, "single")
    pid = client.first()["pid"]

    client.process.kill()
    client.end()

    wait_until(lambda: not psutil.pid_exists(pid), "the process has ended")


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("other", [{"PYTHONHASHSEED": "7"}, {fork_client.SERVER: "/nowhere/fork"}], ids=repr)
def test_another_python_is_a_new_process(folder: Path, other: Mapping[str, str]) -> None:
    """With other hashes, for instance, or if there is no server."""
    client = Client(folder, "single", "one", **other)

    found = client.first()
    errors, code = client.end("12")

    assert (found["pid"], found["arguments"]) == (client.process.pid, ["one"])
    assert (errors, code) == ("an error\n", 2)


def test_processes_go_on_when_the_first_one_ends(tmp_path: Path) -> None:
    """Those of other pools, whose tasks would fail; and the server is there until their end."""
    (tmp_path / "pool_daemon.py").write_text(_PROGRAM)
    first, second = Client(tmp_path, "pool_daemon"), Client(tmp_path, "pool_daemon")
    servers = {client.first()["parent"] for client in (first, second)}

    assert first.process.stdin is not None
    first.process.stdin.close()
    assert first.process.wait(60) == 0
    assert second.process.poll() is None
    assert second.end("123")[1] == 3
    (server,) = servers
    wait_until(lambda: not psutil.pid_exists(server), "the server has ended")
    first.process.stdin = None
    assert first.end()[0] == "an error\n"  # the server has written none


def test_a_process_whose_server_is_killed_goes_on(tmp_path: Path) -> None:
    """Its client stays as long as it, so that Spark does not close its standard input."""
    (tmp_path / "pool_daemon.py").write_text(_PROGRAM)
    client = Client(tmp_path, "pool_daemon")
    found = client.first()

    os.kill(found["parent"], signal.SIGKILL)
    time.sleep(1)

    assert client.process.poll() is None
    assert client.end() == ("an error\n", 1)
    assert not psutil.pid_exists(found["pid"])


@pytest.mark.usefixtures("pool")
def test_a_client_that_asks_and_dies_harms_no_other(folder: Path) -> None:
    """Spark ends the process of a query that is stopped while it starts."""
    other = Client(folder, "single")
    server = other.first()["parent"]
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{Path(__file__).parents[3]}"}
    asked = json.dumps({"arguments": ["single"], "environment": environment}).encode()
    os.kill(server, signal.SIGSTOP)
    with socket.socket(socket.AF_UNIX) as client, Path(os.devnull).open() as null:
        client.connect(str(folder / "fork"))
        socket.send_fds(client, [struct.pack(fork_client.LENGTH, len(asked))], [null.fileno()] * 3)
        client.sendall(asked)
    os.kill(server, signal.SIGCONT)
    wait_until(lambda: len(psutil.Process(server).children()) == 2, "the process has ended")

    assert other.end("12")[1] == 2


def test_a_server_ends_with_its_first_process_and_the_next_one_starts_another(tmp_path: Path) -> None:
    (tmp_path / "pool_daemon.py").write_text(_PROGRAM)
    first = Client(tmp_path, "pool_daemon")
    servers = [first.first()["parent"]]
    first.process.kill()
    first.end()
    wait_until(lambda: not psutil.pid_exists(servers[0]), "the server has ended")

    second = Client(tmp_path, "pool_daemon")
    servers.append(second.first()["parent"])

    assert len({*servers}) == 2
    assert second.end("123")[1] == 3
