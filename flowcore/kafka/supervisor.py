"""Supervisor program that ends a child process when its owner ends, however the owner ends.

This file is run by path, between an owner (any Python program) and a long-running child (the broker's
Java). It imports only the standard library, so it starts in milliseconds. Its one argument is JSON:

    {"commands": [[...], ...], "folder": where they run, "log": a file in there, "remove": true,
     "grace_s": seconds, "keep_open": [file descriptors for the child], "owner_pid": pid}

The commands run one after another; the last one is the child. The owner holds a pipe to stdin. Its end,
which the kernel causes even after kill -9 of the owner, stops the child and removes the folder, and so does
SIGTERM. A session of its own keeps a terminal's Ctrl-C away, so the child outlives its owner's clean-up. If
the supervisor is killed, Linux kills the child.

If a command fails or the child ends by itself, the last lines of the log go to stdout.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

_PR_SET_PDEATHSIG = 1
_LOG_LINES = 15
_POLL_S = 0.1
_terminated: list[bool] = []


def supervise() -> int:
    """Run the commands of the argument until stdin ends; 0 if the owner ended them."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Noted, not raised: an exception between the fork and the first `try` would leave the child alone.
    signal.signal(signal.SIGTERM, lambda *_: _terminated.append(True))
    task = json.loads(sys.argv[1])
    log = Path(task["folder"], task["log"])
    try:
        with log.open("wb") as output:
            for command in task["commands"]:
                code = _run(command, output, task)
                if code is None:
                    return 0
                if code:
                    break
        lines = log.read_text(errors="replace").splitlines()
        sys.stdout.write("\n".join(lines[-_LOG_LINES:]))
        return 1
    finally:
        if task["remove"]:
            shutil.rmtree(task["folder"], ignore_errors=True)


def _run(command: list[str], output: IO[bytes], task: dict[str, Any]) -> int | None:
    """Run one command and return its exit code; None if the owner ended first and the command was stopped."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def die_with_the_supervisor() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM if task["grace_s"] else signal.SIGKILL)

    child = subprocess.Popen(  # noqa: S603 - the owner built the command, no shell is involved
        command,
        cwd=task["folder"],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        preexec_fn=die_with_the_supervisor,  # noqa: PLW1509 - this process has no other thread
        pass_fds=task["keep_open"],
    )
    try:
        while child.poll() is None:
            # The pipe alone is not enough: a child that the owner forked holds it open as well.
            owner_gone = os.getppid() != task["owner_pid"]
            if select.select([sys.stdin], [], [], _POLL_S)[0] or owner_gone or _terminated:
                return None
        return child.returncode
    finally:
        if task["grace_s"]:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(task["grace_s"])
        child.kill()
        child.wait()


if __name__ == "__main__":
    sys.exit(supervise())
