"""The parts of the embedded broker that need no Java: supervisor, lock, ports and options."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from flowcore.cli.broker import _topic
from flowcore.errors import BrokerError
from flowcore.kafka import supervisor
from flowcore.kafka.broker import EmbeddedBroker, _lock_data, free_port

Supervise = Callable[[list[str]], "subprocess.Popen[str]"]


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Supervise]:
    """Start supervisors as the broker does, with a shell instead of Java."""
    started: list[subprocess.Popen[str]] = []

    def start(scripts: list[str]) -> subprocess.Popen[str]:
        (tmp_path / "data").mkdir()
        task = {
            "commands": [["/bin/sh", "-c", script] for script in scripts],
            "folder": str(tmp_path / "data"),
            "log": "../log",
            "remove": True,
            "grace_s": 0.5,
            "keep_open": [],
            "owner_pid": os.getpid(),
        }
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__, json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def _wait_for_line(path: Path) -> str:
    while not path.exists() or not path.read_text().endswith("\n"):
        pass
    return path.read_text().strip()


def test_supervisor_stops_its_child_when_the_pipe_ends(supervise: Supervise, tmp_path: Path) -> None:
    """The end of stdin terminates the child, removes the folder and gives exit code 0."""
    process = supervise([f"echo $$ > {tmp_path}/pid; exec sleep 600"])
    child = int(_wait_for_line(tmp_path / "pid"))

    process.communicate(timeout=10)

    assert process.returncode == 0
    assert not (tmp_path / "data").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_supervisor_kills_a_child_that_does_not_terminate(supervise: Supervise, tmp_path: Path) -> None:
    """SIGTERM ends the supervisor too, and a stuck child is killed after its grace period."""
    process = supervise([f"trap '' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.1; done"])
    child = int(_wait_for_line(tmp_path / "pid"))

    process.send_signal(signal.SIGTERM)
    process.wait(timeout=10)

    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_supervisor_ignores_the_terminals_interrupt(supervise: Supervise, tmp_path: Path) -> None:
    """Ctrl-C is for the owner, which may still need the child to clean up."""
    process = supervise([f"echo $$ > {tmp_path}/pid; exec sleep 600"])
    child = int(_wait_for_line(tmp_path / "pid"))

    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)

    os.kill(child, 0)


def test_supervisor_runs_commands_in_turn_and_prints_the_last_lines_of_a_failure(
    supervise: Supervise, tmp_path: Path
) -> None:
    """A command that fails keeps the next from starting; the reason is what the log says."""
    process = supervise(["echo one", "echo two; exit 3", f"touch {tmp_path}/three"])

    process.wait(timeout=10)

    assert process.stdout
    assert process.stdout.read() == "one\ntwo"
    assert not (tmp_path / "three").exists()
    assert not (tmp_path / "data").exists()


def test_folder_is_refused_while_another_broker_holds_it(tmp_path: Path) -> None:
    """The message names the folder and the broker that has it; afterwards it is free again."""
    lock = tmp_path / "data" / "broker.lock"
    with (
        _lock_data(lock, "127.0.0.1:20001"),
        pytest.raises(BrokerError, match=rf"data={lock.parent} is in use by the broker at 127.0.0.1:20001"),
        _lock_data(lock, "127.0.0.1:20002"),
    ):
        pass

    with _lock_data(lock, "127.0.0.1:20003"):
        assert lock.read_text() == "127.0.0.1:20003\n"


def test_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """The error names the file at the folder's path and the fix."""
    (tmp_path / "data").touch()

    with (
        pytest.raises(BrokerError, match=r"data=.*cannot be used.*pass a folder"),
        _lock_data(tmp_path / "data" / "broker.lock", "127.0.0.1:20001"),
    ):
        pass


def test_taken_port_is_refused_before_anything_starts() -> None:
    """The message names the requested port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(BrokerError, match=rf"port={port} on 127.0.0.1 is taken"):
            EmbeddedBroker(port=port).start()


def test_free_port_is_below_the_ports_that_the_system_hands_out() -> None:
    """A free port can be opened, is not the excluded one, and stays free over a restart."""
    first = free_port()

    assert 20_000 <= first < 30_000
    assert free_port(besides=first) != first
    with socket.create_server(("127.0.0.1", first)):
        pass


def test_stop_of_a_broker_that_is_not_started_does_nothing() -> None:
    """Stopping twice or before a start is not an error; watching is."""
    broker = EmbeddedBroker()
    broker.stop()

    with pytest.raises(BrokerError, match=r"is not started; call start\(\) first"):
        broker.wait(0)


@pytest.mark.parametrize(
    ("given", "expected"), [("bids", ("bids", 1)), ("bids:3", ("bids", 3))], ids=["name", "partitions"]
)
def test_topic_option_takes_a_name_and_partitions(given: str, expected: tuple[str, int]) -> None:
    """Without partitions a topic has one."""
    assert _topic(given) == expected


@pytest.mark.parametrize("given", [":2", "bids:0", "bids:x", "bids:-1", "bids:1:2"])
def test_topic_option_refuses_other_text(given: str) -> None:
    """The message repeats the given text."""
    with pytest.raises(click.BadParameter, match=f"'{given}' is not NAME or NAME:PARTITIONS"):
        _topic(given)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
@pytest.mark.parametrize("way", ["owner", "mode", "link"])
def test_folder_that_others_can_change_is_refused(way: str, tmp_path: Path) -> None:
    """They could put a link to a file of this user where the broker writes."""
    data, victim = tmp_path / "data", tmp_path / "victim"
    victim.write_text("own")
    (tmp_path / "real").mkdir()
    data.symlink_to("real")
    (data / "broker.lock").symlink_to(victim)
    if way == "link":
        os.chown(data, 4711, -1, follow_symlinks=False)
    elif way == "owner":
        os.chown(data, 4711, -1)
    else:
        data.chmod(0o777)

    with pytest.raises(BrokerError, match="user 4711" if way != "mode" else "has mode 777.*chmod -R go-w"):
        EmbeddedBroker(data).start()

    assert victim.read_text() == "own"
