"""A process with all modules of Python workers, from which the processes that Spark starts are forked.

Spark starts a process of Python for the pool of each exchange, and another one for each exchange at the start
of a query. A new Python takes more than a second of processor time to import pandas, Arrow and flowcore, and
100 MB. Forked from this one it takes some milliseconds, and shares its memory.

`fork_client` starts the server with the first pool, and asks it for each process. When the client ends that
has started it, which holds the other end of its standard input, the server takes no more clients, and ends
with its last process.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from flowcore.spark.run.fork_client import LENGTH, python_variables

__all__ = ["serve"]

_MODULES = "flowcore.spark.run.worker_daemon", "pyspark.sql.streaming.transform_with_state_driver_worker"
_FDS = 3


def serve(path: str) -> None:
    """Fork processes for the clients of a socket, until the standard input ends.

    Args:
        path: Of the socket. Clients may connect before the modules are imported, and wait.
    """
    listening = socket.socket(socket.AF_UNIX)
    Path(f"{path}.new").unlink(missing_ok=True)  # of a server that was killed before it listened
    listening.bind(f"{path}.new")
    listening.listen(128)
    Path(f"{path}.new").rename(path)  # with a listener, so that no client is refused
    for module in _MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # so that garbage collection in a child does not copy these pages
    _Server(listening).run()


class _Server:
    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._clients: dict[int, socket.socket] = {}
        """The client of each child, by process id."""
        self._is_open = True
        self._ended, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for source in (0, self._listening, self._ended):
                selector.register(source, selectors.EVENT_READ)
            while self._is_open or self._clients:
                ready = [key.fileobj for key, _ in selector.select()]
                if 0 in ready:  # the others go on; the next pool starts another server
                    for source in (0, self._listening):
                        selector.unregister(source)
                    self._listening.close()
                    self._is_open = False
                if self._ended in ready:
                    self._ended.recv(1024)
                    self._report_ended()
                if self._is_open and self._listening in ready:
                    with suppress(OSError):  # a client that has gone, or too many open files
                        self._answer(self._listening.accept()[0])

    def _report_ended(self) -> None:
        """Tell clients how their processes have ended."""
        with suppress(ChildProcessError):  # there is no other child
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                client = self._clients.pop(ended[0], None)
                if client is not None:  # else it was killed before it had an answer
                    with client, suppress(OSError):
                        client.sendall(struct.pack(LENGTH, os.waitstatus_to_exitcode(ended[1]) & 0xFF))

    def _answer(self, client: socket.socket) -> None:
        """Fork a process as the client asks for, unless its Python would be another one."""
        fds: list[int] = []
        try:
            first, fds, _, _ = socket.recv_fds(client, struct.calcsize(LENGTH), _FDS)
            (length,) = struct.unpack(LENGTH, first)
            with client.makefile("rb") as stream:
                asked = json.loads(stream.read(length))
            if python_variables(asked["environment"]) != python_variables(os.environ):
                client.close()  # it starts a Python of its own
                return
            pid = os.fork()
            if not pid:
                self._become(asked, fds, client)
            client.sendall(struct.pack(LENGTH, pid))
            self._clients[pid] = client
        except (OSError, ValueError, struct.error):  # a client that has ended
            client.close()
        finally:
            for fd in fds:
                os.close(fd)

    def _become(self, asked: dict[str, Any], fds: list[int], client: socket.socket) -> NoReturn:
        """Be the process that a client asks for."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd, own in zip(fds, range(_FDS), strict=True):
                os.dup2(fd, own)
                os.close(fd)
            for each in (client, self._listening, self._ended, self._wake, *self._clients.values()):
                each.close()
            os.environ.clear()
            os.environ.update(asked["environment"])
            module, *sys.argv[1:] = asked["arguments"]
            sys.modules.pop(module, None)  # it is imported, and runs as a program now
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            status = 0
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:  # noqa: BLE001 - as Python does it
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            os._exit(status)


if __name__ == "__main__":
    serve(sys.argv[1])
