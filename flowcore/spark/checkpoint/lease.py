"""Leases: one live query on a checkpoint, from whatever machine sees its folder.

Who holds a checkpoint is the highest of the numbered files ``.<query>.lease.<n>`` beside it. To take it is to
create the next number, which a file system grants to one process alone; so the number is the holder's fencing
token. A file's content never changes but for the word that it was given back. Its time of change is the
heartbeat, and how old that is, is told by the clock of the file system, not by those of two machines.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flowcore.background import Repeating
from flowcore.errors import RunError

__all__ = ["HEARTBEAT_S", "STALE_S", "Holder", "Leases", "may_take"]

HEARTBEAT_S = 5.0
STALE_S = 6 * HEARTBEAT_S
"""A lease that was not renewed for so long belongs to nobody."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds leases, or held them.

    Attributes:
        host: Name of its machine.
        space: The machine's start and the container, since a host name may be used again; empty where that
            cannot be told.
        pid: Its number.
        began: Tells it from a later process of the same number; empty where that cannot be told.
        released: It gave the lease back.
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


def may_take(holder: Holder | None, age_s: float, mine: Holder, *, lives: bool) -> bool:
    """Whether a lease may be taken from who holds it.

    Args:
        holder: Who does; None if that cannot be read, as while its file is being written.
        age_s: Seconds since it was renewed.
        mine: Who wants it.
        lives: The holder's process exists, as far as that can be seen from here.
    """
    if holder is not None:
        if holder.released:
            return True
        if (holder.host, holder.space) == (mine.host, mine.space) and not lives:
            return True
    return age_s > STALE_S


class Leases:
    """The checkpoints that this process holds; a context manager with one thread, which renews them.

    Args:
        heartbeat_s: Seconds between two renewals.
    """

    def __init__(self, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._mine = Holder.here()
        self._held: list[Path] = []
        self._lost: Path | None = None
        self._renewing = Repeating("leases", self.renew, heartbeat_s)

    def __enter__(self) -> Self:
        self._renewing.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._renewing.__exit__(kind, error, trace)
        for path in self._held:
            with suppress(OSError):  # it is free again when it is stale
                if _is_last(path):
                    _write(path, replace(self._mine, released=True))

    def take(self, checkpoint: Path) -> None:
        """Take a checkpoint.

        Raises:
            RunError: Another run holds it, also another run of this process.
        """
        folder, query = checkpoint.parent, checkpoint.name
        folder.mkdir(parents=True, exist_ok=True)
        found = _leases(folder, query)
        if found and not self._free(found[-1]):
            holder = _read(found[-1])
            msg = (
                f"query {query!r} already runs on the checkpoint {checkpoint}, held by "
                f"{holder or 'a process that cannot be told'}: two would write everything twice and spoil "
                f"it; stop the other run, or set another state.dir; if that process is gone, wait "
                f"{STALE_S:g} s after its end (lease {found[-1]})"
            )
            raise RunError(msg)
        path = folder / f".{query}.lease.{_number(found[-1]) + 1 if found else 1}"
        if not _create(path):
            msg = (
                f"query {query!r} is just being started on the checkpoint {checkpoint} by another process: "
                f"two would write everything twice and spoil it; stop that one first (lease {path})"
            )
            raise RunError(msg)
        _write(path, self._mine)
        self._held.append(path)
        if found:
            _log.info("the checkpoint %s was held by %s", checkpoint, _read(found[-1]))
        for old in found:
            old.unlink(missing_ok=True)

    def check(self) -> None:
        """Check that all are still held, as far as the last renewal told.

        Raises:
            RunError: Another process has taken one, as this one seemed to be gone.
        """
        if self._lost is not None:
            msg = (
                f"the lease {self._lost} was taken over by another process, since this one had not renewed "
                f"it for {STALE_S:g} s: it must not write any more, and stops; the other one goes on"
            )
            raise RunError(msg)

    def renew(self) -> None:
        """Renew all, and see whether they are still this process's."""
        for path in tuple(self._held):
            try:
                os.utime(path)
                lost = not _is_last(path)
            except FileNotFoundError:
                lost = True
            except OSError:  # the file system is away; it tells when it is back
                _log.warning("the lease %s cannot be renewed", path, exc_info=True)
                continue
            if lost:
                self._lost = path

    def _free(self, lease: Path) -> bool:
        holder = _read(lease)
        lives = holder is not None and _lives(holder)
        return may_take(holder, _age_s(lease), self._mine, lives=lives)


def _leases(folder: Path, query: str) -> list[Path]:
    """The leases of a checkpoint, the one that counts last."""
    prefix = f".{query}.lease."
    found = (path for path in folder.iterdir() if path.name.startswith(prefix))
    return sorted((path for path in found if path.name.removeprefix(prefix).isdigit()), key=_number)


def _number(lease: Path) -> int:
    return int(lease.name.rpartition(".")[2])


def _is_last(lease: Path) -> bool:
    query = lease.name.removeprefix(".").rpartition(".lease.")[0]
    return _leases(lease.parent, query)[-1:] == [lease]


def _create(lease: Path) -> bool:
    """Create the file, unless another process has; or a later one, and then removed that of this number."""
    try:
        lease.touch(exist_ok=False)
    except FileExistsError:
        return False
    if _is_last(lease):
        return True
    lease.unlink()
    return False


def _write(lease: Path, holder: Holder) -> None:
    with lease.open("w") as file:
        json.dump(asdict(holder), file)
        file.flush()
        os.fsync(file.fileno())


def _read(lease: Path) -> Holder | None:
    try:
        found: dict[str, Any] = json.loads(lease.read_text())
        return Holder(**found)
    except (OSError, ValueError, TypeError):
        return None


def _age_s(lease: Path) -> float:
    """Seconds since it was renewed, by the clock of the file system that keeps it."""
    probe = lease.with_name(f"{lease.name}.probe-{os.getpid()}-{threading.get_ident()}")
    try:
        probe.touch()
        return probe.stat().st_mtime - lease.stat().st_mtime
    except FileNotFoundError:  # it was taken by another in this moment
        return 0.0
    finally:
        probe.unlink(missing_ok=True)


def _space() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _lives(holder: Holder) -> bool:
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    state, began = _stat(holder.pid)
    return state not in ("Z", "X") and (not (began and holder.began) or began == holder.began)


def _stat(pid: int) -> tuple[str, str]:
    """State of a process, and its start in ticks since the machine's; empty where that cannot be told."""
    try:
        # The name before them, in parentheses, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return "", ""
