"""Embedded broker: a real Kafka broker that needs nothing but Java.

`EmbeddedBroker` starts Apache Kafka 4.2 (KRaft, broker and controller in one process) on loopback ports,
from the jars of `flowcore.installation`. The Java process is the child of a supervisor
(`flowcore.kafka.supervisor`), so it ends and a temporary folder is removed however this program ends.

Folder: ``server.properties``, ``broker.log`` (since the last start), ``broker.lock``, ``kafka/``.
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self

from flowcore.errors import BrokerError
from flowcore.installation.jars import jars
from flowcore.installation.java import find_java
from flowcore.kafka import supervisor
from flowcore.kafka.topics import wait_until_ready
from flowcore.ownership import foreign_link, is_foreign, is_writable_by_others

__all__ = ["EmbeddedBroker", "free_port"]

_UMASK = 0o077
"""Records may be anybody's secrets: only the user can read the files of the broker."""
_HOST = "127.0.0.1"
_START_TIMEOUT_S = 120.0
_STOP_GRACE_S = 20.0

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
# Relative to the data folder, whose name may not be valid in a properties file.
log.dirs=kafka
# Old records are kept: tests and demos replay history.
log.retention.ms=-1
# One node has one replica; one partition of each internal topic starts fastest.
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
# On, as by default, for producers and notebooks. flowcore creates its topics itself, with the number of
# partitions of the flow.
auto.create.topics.enable=true
num.partitions=1
# A consumer group of one process does not wait for others to join.
group.initial.rebalance.delay.ms=0
# Few threads for a small machine that the stream shares.
num.network.threads=2
num.io.threads=4
# Large reads and writes in few system calls.
socket.send.buffer.bytes=1048576
socket.receive.buffer.bytes=1048576
"""

# Kafka's own choice of collector and pause; a fixed heap, because growth costs pauses.
_JAVA_OPTIONS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)
# Formatting takes a second, less than compiling it well.
_SHORT_JAVA_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_FORMAT = ("kafka.tools.StorageTool", "format", "--config", "server.properties", "--cluster-id")
_SERVE = ("kafka.Kafka", "server.properties")
_LOG = "broker.log"


class EmbeddedBroker:
    """A Kafka broker that runs while this object is started.

    >>> with EmbeddedBroker() as broker:  # doctest: +SKIP
    ...     print(broker.bootstrap_servers)
    127.0.0.1:23456

    Args:
        data: Folder that keeps topics and records between starts; created if missing. Default: a temporary
            folder, removed at the end.
        port: Loopback port for clients. Default: a free port, chosen once per object.
        heap_mib: Heap of the broker's Java process, in MiB.
    """

    def __init__(self, data: Path | None = None, port: int | None = None, heap_mib: int = 512) -> None:
        self._data = data
        self._port_is_given = port is not None
        self._port = free_port() if port is None else port
        self._heap_mib = heap_mib
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        """The ``bootstrap.servers`` of Kafka clients."""
        return f"{_HOST}:{self._port}"

    @property
    def log(self) -> Path | None:
        """The broker's log file while it runs."""
        return self._folder and self._folder / _LOG

    def start(self) -> Self:
        """Start the broker and wait until it answers a client.

        Raises:
            BrokerError: The port is taken, the folder is in use by another broker or others can write it, or
                the broker ended while it started.
            InstallationError: Java or the broker's jars are missing.
        """
        if self._process is not None:
            msg = f"the broker at {self.bootstrap_servers} is already started; stop it first"
            raise BrokerError(msg)
        self._check_port()
        java = find_java().executable
        class_path = os.pathsep.join(map(str, jars("broker")))
        if self._data is None:
            folder = Path(tempfile.mkdtemp(prefix="flowcore-broker-"))
        else:
            folder = _resolved(self._data)
        self._folder = folder
        try:
            with _lock_data(folder / "broker.lock", self.bootstrap_servers) as lock:
                self._process = self._supervise(folder, lock.fileno(), str(java), class_path)
            wait_until_ready(self.bootstrap_servers, _START_TIMEOUT_S, lambda: self.wait(0))
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the broker; a temporary folder is removed when this returns."""
        if self._process is not None:
            process, self._process = self._process, None
            # The end of its stdin is not enough: children that this program forked hold it open.
            process.terminate()
            process.communicate()
        if self._folder is not None and self._data is None:
            # Already done by the supervisor, unless it was killed.
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    def wait(self, timeout_s: float | None = None) -> None:
        """Return after ``timeout_s`` if the broker runs; raise as soon as it does not.

        Args:
            timeout_s: Seconds to watch the broker, 0 to check once, None without end.

        Raises:
            BrokerError: The broker is not started or has ended; the message has its last lines.
        """
        if self._process is None:
            msg = f"the broker at {self.bootstrap_servers} is not started; call start() first"
            raise BrokerError(msg)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
            last_lines = (self._process.stdout.read() if self._process.stdout else b"").decode()
            msg = (
                f"the Kafka broker at {self.bootstrap_servers} with data={self._folder} has ended: "
                f"clients can no longer reach it; its last lines are\n{last_lines}"
            )
            raise BrokerError(msg)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _check_port(self) -> None:
        if _is_free(self._port):
            return
        if self._port_is_given:
            msg = (
                f"port={self._port} on {_HOST} is taken by another program: the broker could not "
                "listen there; stop that program, pass another port, or none for a free one"
            )
            raise BrokerError(msg)
        self._port = free_port()

    def _supervise(self, folder: Path, lock: int, java: str, class_path: str) -> subprocess.Popen[bytes]:
        is_temporary = self._data is None
        (folder / "server.properties").write_text(
            _PROPERTIES.format(host=_HOST, port=self._port, controller_port=free_port(besides=self._port))
        )
        heap = (f"-Xms{self._heap_mib}m", f"-Xmx{self._heap_mib}m")
        commands = [[java, *heap, *_JAVA_OPTIONS, "-cp", class_path, *_SERVE]]
        if not (folder / "kafka" / "meta.properties").exists():
            # Kafka makes 22 characters of 16 bytes; the id must not begin with "-", like an option.
            cluster_id = uuid.uuid4().hex[:22]
            commands.insert(0, [java, *_SHORT_JAVA_OPTIONS, "-cp", class_path, *_FORMAT, cluster_id])
        task = {
            "commands": commands,
            "folder": str(folder),
            "log": _LOG,
            "remove": is_temporary,
            # Temporary data needs no orderly shutdown.
            "grace_s": 0 if is_temporary else _STOP_GRACE_S,
            "keep_open": [lock],
            "owner_pid": os.getpid(),
        }
        return subprocess.Popen(  # noqa: S603 - our own file, no shell
            [sys.executable, "-I", "-S", supervisor.__file__, json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(lock,),
            umask=_UMASK,
        )


def free_port(besides: int | None = None) -> int:
    """A free loopback port.

    It is below the ports that the system assigns by itself, so it stays free while a broker restarts.
    """
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        if port != besides and _is_free(port):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As in Java: closing connections do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
        return True


def _resolved(data: Path) -> Path:
    """The folder of the data, unless another user has chosen which one it is."""
    if found := foreign_link(data.expanduser()):
        link, owner = found
        msg = (
            f"data={data} leads through {link}, a link of user {owner}: the broker would write where that "
            "user wants; pass the folder that is meant"
        )
        raise BrokerError(msg)
    return data.expanduser().resolve()


def _require_own(folder: Path) -> None:
    """Require that only this user can choose what the files in a folder are, such as links to other ones."""
    found = folder.stat()
    if is_foreign(found) or is_writable_by_others(found):
        msg = (
            f"data={folder} belongs to user {found.st_uid} and has mode {stat.S_IMODE(found.st_mode):o}: "
            "another user could change records, or let the broker overwrite your files by links; pass a "
            f"folder of your own, or if its content is yours: chmod -R go-w {folder}"
        )
        raise BrokerError(msg)


@contextlib.contextmanager
def _lock_data(path: Path, owner: str) -> Iterator[IO[str]]:
    """Hold the folder while any process has the file open: the broker's Java is the last."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_own(path.parent)
        lock = path.open("a+")
    except OSError as error:
        msg = f"data={path.parent} cannot be used ({error}): pass a folder that can be written"
        raise BrokerError(msg) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            msg = (
                f"data={path.parent} is in use by the broker at {lock.read().strip()}: two brokers "
                "would spoil each other's records; stop that one, or pass another folder"
            )
            raise BrokerError(msg) from error
        lock.truncate(0)
        lock.write(f"{owner}\n")
        lock.flush()
        yield lock
