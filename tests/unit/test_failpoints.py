"""A fail-point kills or stops the process that reaches it, at the wanted time only."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from flowcore import failpoints

PROGRAM = """
from flowcore.failpoints import failpoint
for number in range(3):
    failpoint("other")
    failpoint("here")
    print(number, flush=True)
"""


def _run(wanted: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env={**os.environ, failpoints.VARIABLE: wanted},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_failpoint_kills_at_the_wanted_time() -> None:
    """The process prints what precedes the second time, and the fail-point."""
    with _run("here:2") as process:
        output, error = process.communicate(timeout=60)

    assert process.returncode == -signal.SIGKILL
    assert (output, error) == ("0\n", "fail-point here:2\n")


def test_failpoint_stops_and_the_process_continues_when_it_is_told_to() -> None:
    """Between SIGSTOP and SIGCONT nothing runs."""
    with _run("here:1:stop") as process:
        try:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            os.kill(process.pid, signal.SIGCONT)
            output, _ = process.communicate(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                process.kill()

    assert output == "0\n1\n2\n"


def test_failpoint_refuses_another_action(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that would have no effect is an error."""
    monkeypatch.setenv(failpoints.VARIABLE, "here:1:sleep")

    with pytest.raises(ValueError, match="here:1:sleep would have no effect"):
        failpoints.failpoint("here")
