"""Fail-points: places at which a test kills or stops the process that reaches them.

``FLOWCORE_FAILPOINT=name:n`` kills a process with SIGKILL when it reaches the fail-point ``name`` for the
n-th time; ``name:n:stop`` stops it with SIGSTOP. Workers inherit the variable, and each process counts for
itself. Without it nothing happens.
"""

import os
import signal
from collections import Counter

__all__ = ["VARIABLE", "failpoint"]

VARIABLE = "FLOWCORE_FAILPOINT"
_SIGNALS = {(): signal.SIGKILL, ("stop",): signal.SIGSTOP}
_reached: Counter[str] = Counter()


def failpoint(name: str) -> None:
    """Kill or stop this process if the environment asks for it here and now.

    Raises:
        ValueError: The variable is not ``name:n`` or ``name:n:stop``.
    """
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    chosen, number, *action = wanted.split(":")
    if tuple(action) not in _SIGNALS:
        msg = f"{VARIABLE}={wanted} would have no effect: pass name:n to kill, or name:n:stop to stop"
        raise ValueError(msg)
    _reached[name] += 1
    if (chosen, int(number)) == (name, _reached[name]):
        os.write(2, f"fail-point {wanted}\n".encode())
        os.kill(os.getpid(), _SIGNALS[tuple(action)])
