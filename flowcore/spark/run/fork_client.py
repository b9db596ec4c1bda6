"""Starts a process of Python for Spark: forked from a server if there is one, otherwise a new one.

It runs as a program, ``fork_client.py -m MODULE ARGUMENT...``, in place of that process and as long as it. So
it imports little, neither pathlib nor typing. The process has its standard streams; a signal that asks for
its end is passed on.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import time

__all__ = ["LENGTH", "SERVER", "main", "python_variables"]

SERVER = "FLOWCORE_FORK_SERVER"
"""The environment variable with the path of the server's socket, in a folder that only its user can open."""
LENGTH = "!I"
_WAITS_S = 20.0
_POLL_S = 0.2
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn


def main() -> None:
    """Run the process until its end, with its exit code."""
    module, *arguments = sys.argv[2:]
    path = os.environ.get(SERVER, "")
    server, lock = None, None
    if sys.argv[1] == "-m" and os.path.isdir(os.path.dirname(path)):  # noqa: PTH112, PTH120 - see above
        lock = _lock(f"{path}.lock") if module.endswith("daemon") else None
        server = _connect(path, _start(path) if lock is not None else None)
    if server is None or (pid := _ask(server, [module, *arguments])) is None:
        _become_python(*sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: _terminate(pid))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    answer = server.recv(struct.calcsize(LENGTH))
    while not answer and _exists(pid):  # the server was killed, and the process goes on
        time.sleep(_POLL_S)
    sys.exit(struct.unpack(LENGTH, answer)[0] if answer else 1)


def python_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that decide about a Python which starts: its modules, its hashes, its streams.

    Those of Spark for its workers begin with ``PYTHON_``.
    """
    mine = ((name, value) for name, value in environment.items() if name.startswith("PYTHON"))
    return {name: value for name, value in mine if not name.startswith("PYTHON_")}


def _lock(path: str) -> int | None:
    """Lock a file as long as this process is there; None if the process that has started the server is."""
    fd = None
    try:
        fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if fd is not None:
            os.close(fd)
        return None
    return fd


def _start(path: str) -> int:
    """Start a server, which ends with this process; return its process id."""
    ends, _held = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(ends, 0)
        os.dup2(2, 1)  # Spark reads the standard output of the process
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        _become_python("-m", "flowcore.spark.run.fork_server", path)
    os.close(ends)
    return pid


def _connect(path: str, started: int | None) -> socket.socket | None:
    """Connect to the server; None if there is none.

    Args:
        started: The process id of the server that is about to listen.
    """
    end = time.monotonic() + _WAITS_S
    while True:
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(path)
        except OSError:
            server.close()
            has_ended = started is not None and os.waitpid(started, os.WNOHANG)[0]
            if has_ended or time.monotonic() > end or (started is None and not _is_started(path)):
                return None
            time.sleep(0.01)
        else:
            return server


def _is_started(path: str) -> bool:
    """Whether another process has started a server and is there."""
    lock = _lock(f"{path}.lock")
    if lock is not None:
        os.close(lock)
    return lock is None


def _ask(server: socket.socket, arguments: list[str]) -> int | None:
    """Ask for a process with these arguments and the standard streams; return its id, None if refused."""
    asked = json.dumps({"arguments": arguments, "environment": dict(os.environ)}).encode()
    try:
        socket.send_fds(server, [struct.pack(LENGTH, len(asked))], [0, 1, 2])
        server.sendall(asked)
        answer = server.recv(struct.calcsize(LENGTH))
    except OSError:
        return None
    return struct.unpack(LENGTH, answer)[0] if answer else None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _terminate(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def _become_python(*arguments: str) -> NoReturn:
    python = os.environ["PYSPARK_DRIVER_PYTHON"]
    os.execv(python, [python, *arguments])  # noqa: S606 - the driver's own Python


if __name__ == "__main__":
    main()
