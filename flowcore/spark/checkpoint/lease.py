"""Leases: at most one live query runs on a checkpoint, on any machine that can access its folder.

The highest of the numbered files ``.<query>.lease.<n>`` beside a checkpoint names its holder. To take the
checkpoint, a process creates the next number, which a file system grants to one process only; so the number
is the holder's fencing token. The content of a file changes only when the lease is released. Its modification
time is the heartbeat; its age is measured by the clock of the file system, not by the clocks of two machines.
"""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from flowcore.background import PeriodicThread
from flowcore.errors import MissingStateError, RunError
from flowcore.stored_json import read_json

__all__ = ["STALE_S", "Holder", "Leases", "may_take", "running_s"]

_HEARTBEAT_S = 5.0
_MOST_BYTES = 1 << 16
_MOST_PID = 2**31 - 1
STALE_S = 6 * _HEARTBEAT_S
"""A lease that was not renewed for longer is free."""
_CONFIRM_S = 2 * _HEARTBEAT_S
"""A lease that is free by its time is watched this long: a clock may have been put forward."""
_WATCH_S = 0.2

_log = logging.getLogger(__name__)


def running_s() -> float:
    """Seconds of a clock that nobody sets, and that goes on while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds leases, or held them.

    Attributes:
        space: The boot id of the machine and the container, since a host name may be reused; empty if
            unknown.
        began: When the process started, since a process id may be reused; empty if unknown.
    """

    host: str
    space: str
    pid: int
    began: str
    released: bool = False

    @classmethod
    def here(cls) -> Self:
        """This process."""
        return cls(socket.gethostname(), _space(), os.getpid(), _stat(os.getpid())[1])

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def may_take(holder: Holder | None, age_s: float, mine: Holder, *, is_running: bool) -> bool:
    """Whether a lease may be taken from its holder.

    Args:
        holder: The holder; None if its file cannot be read, as while it is being written.
        age_s: Seconds since the lease was renewed.
        mine: The process that takes the lease.
        is_running: Whether the holder's process exists, as far as this process can see.
    """
    if holder is not None:
        if holder.released:
            return True
        here = bool(mine.space) and (holder.host, holder.space) == (mine.host, mine.space)
        if here and not is_running:
            return True
    return age_s > STALE_S


class Leases:
    """The leases of this process; a context manager with a thread that renews them.

    Args:
        heartbeat_s: Seconds between two renewals.
        on_renewed: Called after all leases were renewed, with a time of `running_s` before that.
    """

    def __init__(
        self, heartbeat_s: float = _HEARTBEAT_S, on_renewed: Callable[[float], object] = lambda _: None
    ) -> None:
        self._on_renewed = on_renewed
        self._mine = Holder.here()
        self._held: list[Path] = []
        self._lost: Path | None = None
        self._renewing = PeriodicThread("leases", self.renew, heartbeat_s)

    def __enter__(self) -> Self:
        self._renewing.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._renewing.__exit__(None, None, None)
        for path in self._held:
            with suppress(OSError):  # the lease becomes free when it is stale
                if _is_last(path):
                    _write(path, replace(self._mine, released=True))

    def take(self, *checkpoints: Path) -> None:
        """Take checkpoints. Stale leases of all of them are watched together.

        Raises:
            RunError: Another run holds one, also another run of this process.
        """
        found = {}
        for checkpoint in checkpoints:
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
            found[checkpoint] = _leases(checkpoint.parent, checkpoint.name)
        self._require_free({checkpoint: leases[-1] for checkpoint, leases in found.items() if leases})
        for checkpoint, leases in found.items():
            self._take(checkpoint, leases)

    def _require_free(self, leases: Mapping[Path, Path]) -> None:
        waits = {checkpoint: self._watch_s(lease) for checkpoint, lease in leases.items()}
        held = [checkpoint for checkpoint, wait_s in waits.items() if wait_s is None]
        if not held:
            watched = {leases[checkpoint]: wait_s for checkpoint, wait_s in waits.items() if wait_s}
            renewed = _find_renewed(watched)
            held = [checkpoint for checkpoint, lease in leases.items() if lease in renewed]
        for checkpoint in held:
            lease = leases[checkpoint]
            msg = (
                f"query {checkpoint.name!r} already runs on the checkpoint {checkpoint}, held by "
                f"{_read(lease) or 'an unknown process'}: two would write everything twice and damage "
                f"it; stop the other run, or set another state.dir; if that process is gone, wait "
                f"{STALE_S:g} s after its end (lease {lease})"
            )
            raise RunError(msg)

    def _take(self, checkpoint: Path, found: list[Path]) -> None:
        folder, query = checkpoint.parent, checkpoint.name
        path = folder / f".{query}.lease.{_number(found[-1]) + 1 if found else 1}"
        if not _create(path):
            msg = (
                f"query {query!r} is just being started on the checkpoint {checkpoint} by another process: "
                f"two would write everything twice and damage it; stop that one first (lease {path})"
            )
            raise RunError(msg)
        try:
            _write(path, self._mine)
        except OSError:
            path.unlink()  # nobody would know for how long it is held
            raise
        self._held.append(path)
        if found:
            _log.info("the checkpoint %s was held by %s", checkpoint, _read(found[-1]))
        for old in found:
            old.unlink(missing_ok=True)

    def check(self) -> None:
        """Check that all leases were still held at the last renewal.

        Raises:
            RunError: Another process has taken a lease that this one had not renewed in time.
            MissingStateError: The folder of the checkpoint is gone; Spark may have made an empty one.
        """
        if self._lost is not None and not _leases(self._lost.parent, _query(self._lost)):
            msg = (
                f"the folder {self._lost.parent} of the checkpoints is gone, or its disk is not mounted: the "
                "queries would continue in an empty folder, without what they have read and kept, so they "
                "stop; bring the folder back, and start the flow again"
            )
            raise MissingStateError(msg)
        if self._lost is not None:
            msg = (
                f"the lease {self._lost} was taken over by another process, since this one had not renewed "
                f"it for {STALE_S:g} s: it must not write any more, and stops; the other process continues"
            )
            raise RunError(msg)

    def renew(self) -> None:
        """Renew all leases and check that this process still holds them."""
        began_s, renewed = running_s(), True
        for path in tuple(self._held):
            try:
                os.utime(path)
                lost = not _is_last(path)
            except FileNotFoundError:
                lost = True
            except OSError:  # the file system is not available; the next renewal checks
                _log.warning("the lease %s cannot be renewed", path, exc_info=True)
                renewed = False
                continue
            if lost:
                self._lost = path
        if renewed and self._lost is None:
            self._on_renewed(began_s)

    def require(self) -> None:
        """Renew all leases, and check that this process still holds them, as after a long computation.

        Raises:
            RunError, MissingStateError: As `check` does.
        """
        self.renew()
        self.check()

    def _watch_s(self, lease: Path) -> float | None:
        """For how many seconds a lease must not be renewed to be free; None if it is held."""
        holder = _read(lease)
        is_running = holder is not None and _is_running(holder)
        if may_take(holder, 0.0, self._mine, is_running=is_running):
            return 0.0
        age_s = _age_s(lease)
        if age_s < -_HEARTBEAT_S:
            _log.warning(
                "the lease %s has a time in the future: a clock was put back; its holder is watched for %g s",
                lease, STALE_S,
            )  # fmt: skip
            return STALE_S
        return _CONFIRM_S if may_take(holder, age_s, self._mine, is_running=is_running) else None


def _leases(folder: Path, query: str) -> list[Path]:
    """The leases of a checkpoint, the valid one last."""
    prefix = f".{query}.lease."
    try:
        found = [path for path in folder.iterdir() if path.name.startswith(prefix)]
    except FileNotFoundError:
        return []
    return sorted((path for path in found if path.name.removeprefix(prefix).isdecimal()), key=_number)


def _number(lease: Path) -> int:
    return int(lease.name.rpartition(".")[2])


def _is_last(lease: Path) -> bool:
    return _leases(lease.parent, _query(lease))[-1:] == [lease]


def _query(lease: Path) -> str:
    return lease.name.removeprefix(".").rpartition(".lease.")[0]


def _create(lease: Path) -> bool:
    """Create the file; False if another process has created this number, or a later one."""
    try:
        lease.touch(exist_ok=False)
    except FileExistsError:
        return False
    if _is_last(lease):
        return True
    lease.unlink()
    return False


def _write(lease: Path, holder: Holder) -> None:
    """Write a lease as a whole: on a full disk it stays as it was."""
    part = lease.with_name(f"{lease.name}.part")
    try:
        with part.open("w") as file:
            json.dump(asdict(holder), file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(lease)
    finally:
        part.unlink(missing_ok=True)


def _read(lease: Path) -> Holder | None:
    try:
        found: dict[str, Any] = read_json(lease, _MOST_BYTES)
        holder = Holder(**found)
    except (OSError, ValueError, TypeError):
        return None
    return holder if type(holder.pid) is int and 0 < holder.pid <= _MOST_PID else None


def _age_s(lease: Path) -> float:
    """Seconds since the lease was renewed, by the clock of its file system."""
    probe = lease.with_name(f"{lease.name}.probe-{os.getpid()}-{threading.get_ident()}")
    try:
        probe.touch()
        return probe.stat().st_mtime - lease.stat().st_mtime
    except FileNotFoundError:  # another process has just taken it
        return 0.0
    finally:
        probe.unlink(missing_ok=True)


def _find_renewed(watched: Mapping[Path, float]) -> set[Path]:
    """Watch leases for some seconds each, all together: those that were renewed, or taken, meanwhile."""
    began_s = time.monotonic()
    before = {lease: _renewed_ns(lease) for lease in watched}
    renewed: set[Path] = set()
    while not renewed and (waits := [each for each in watched.values() if time.monotonic() < began_s + each]):
        time.sleep(min(_WATCH_S, *waits))
        renewed = {lease for lease, time_ns in before.items() if _renewed_ns(lease) != time_ns}
    return renewed


def _renewed_ns(lease: Path) -> int | None:
    """When a lease was renewed; None if another process has taken it."""
    try:
        with lease.open("rb") as file:  # to open a file asks a server for its time, to look at it may not
            return os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None


def _space() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _is_running(holder: Holder) -> bool:
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    state, began = _stat(holder.pid)
    return state not in ("Z", "X") and (not (began and holder.began) or began == holder.began)


def _stat(pid: int) -> tuple[str, str]:
    """State of a process, and its start in ticks since the machine's boot; empty if unknown."""
    try:
        # The name before the fields, in parentheses, may contain anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return "", ""
