"""One process holds a checkpoint until it releases the lease, has ended, or no longer renews it."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from flowcore.errors import MissingStateError, RunError
from flowcore.spark.checkpoint import lease
from flowcore.spark.checkpoint.lease import STALE_S, Holder, Leases, may_take, running_s

MINE = Holder("here", "boot 1", 10, "77")
HOLDING = """
import sys
from pathlib import Path
from flowcore.spark.checkpoint.lease import Leases
with Leases() as leases:
    leases.take(Path(sys.argv[1]))
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkpoint of a query `bids`, of which a stale lease is watched for a moment only."""
    monkeypatch.setattr(lease, "_CONFIRM_S", 0.05)
    return tmp_path / "checkpoints" / "bids"


@pytest.fixture
def holding(checkpoint: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the checkpoint."""
    command = [sys.executable, "-c", HOLDING, str(checkpoint)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("holder", "age_s", "is_running", "free"),
    [
        (MINE, 0.0, True, False),
        (MINE, 0.0, False, True),
        (MINE, STALE_S, True, False),
        (MINE, STALE_S + 1, True, True),
        (replace(MINE, released=True), 0.0, True, True),
        (replace(MINE, host="there"), 0.0, False, False),
        (replace(MINE, host="there"), STALE_S + 1, False, True),
        (replace(MINE, space="boot 2"), 0.0, False, False),
        (replace(MINE, space="boot 2"), STALE_S + 1, True, True),
        (None, 0.0, False, False),
        (None, STALE_S + 1, False, True),
    ],
    ids=[
        "running", "gone", "silent-for-a-while", "silent", "given-back", "elsewhere", "elsewhere-silent",
        "other-container", "before-a-restart-of-the-machine", "being-written", "half-written",
    ],
)  # fmt: skip
def test_lease_is_free_if_its_holder_has_ended_or_is_silent(
    holder: Holder | None, *, age_s: float, is_running: bool, free: bool
) -> None:
    """A process on another machine cannot be seen; only its missing heartbeat can."""
    assert may_take(holder, age_s, replace(MINE, pid=11), is_running=is_running) is free


def test_process_of_an_unknown_container_may_exist() -> None:
    """Two containers with one host name cannot see each other's processes."""
    assert not may_take(replace(MINE, space=""), 0.0, replace(MINE, space="", pid=11), is_running=False)


def test_second_start_is_refused_and_does_not_affect_the_first(
    checkpoint: Path, holding: subprocess.Popen[str]
) -> None:
    """From another process and from this one, with the holder's name; a released lease is free at once."""
    with Leases() as leases:
        with pytest.raises(RunError, match=rf"'bids' already runs on .*held by process {holding.pid} on "):
            leases.take(checkpoint)
        holding.communicate("", timeout=20)
        leases.take(checkpoint)
        with Leases() as others, pytest.raises(RunError, match="already runs"):
            others.take(checkpoint)
        leases.check()

    assert [file.name for file in checkpoint.parent.iterdir()] == [".bids.lease.2"]


@pytest.mark.parametrize("reaped", [True, False], ids=["reaped", "not-reaped"])
def test_lease_of_a_killed_holder_is_free_at_once(
    checkpoint: Path, holding: subprocess.Popen[str], *, reaped: bool
) -> None:
    """Even before its parent has waited for it."""
    holding.send_signal(signal.SIGKILL)
    if reaped:
        holding.wait(20)
    else:
        os.waitid(os.P_PID, holding.pid, os.WEXITED | os.WNOWAIT)

    with Leases() as leases:
        leases.take(checkpoint)


def test_reused_process_id_does_not_keep_a_lease(checkpoint: Path) -> None:
    """The two processes started at different times."""
    _lease(checkpoint, replace(Holder.here(), began="1"))

    with Leases() as leases:
        leases.take(checkpoint)


def test_silent_holder_on_another_machine_loses_the_lease_and_stops(checkpoint: Path) -> None:
    """It must not write any more; the other process holds the checkpoint."""
    with Leases(heartbeat_s=3600) as slow:
        slow.take(checkpoint)
        _lease(checkpoint, replace(Holder.here(), host="elsewhere"))
        with Leases() as leases:
            with pytest.raises(RunError, match=r"held by process .* on elsewhere"):
                leases.take(checkpoint)
            _lease(checkpoint, replace(Holder.here(), host="elsewhere"), age_s=STALE_S + 5)
            leases.take(checkpoint)
            slow.check()
            slow.renew()

            with pytest.raises(RunError, match="was taken over by another process"):
                slow.check()
            leases.renew()
            leases.check()


def test_highest_number_holds_the_checkpoint(checkpoint: Path) -> None:
    """Even if its process was killed before it removed the lower number."""
    with Leases(heartbeat_s=3600) as slow:
        slow.take(checkpoint)
        _lease(checkpoint, replace(Holder.here(), host="elsewhere"), number=2)
        slow.renew()

        with pytest.raises(RunError, match=r"bids\.lease\.1 was taken over"):
            slow.check()

    assert len(list(checkpoint.parent.iterdir())) == 2


def test_renewed_lease_does_not_get_stale(checkpoint: Path) -> None:
    """The modification time is the heartbeat."""
    with Leases(heartbeat_s=0.02) as leases:
        leases.take(checkpoint)
        held = checkpoint.parent / ".bids.lease.1"
        os.utime(held, (0, 0))
        deadline = time.monotonic() + 20
        while held.stat().st_mtime < 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert held.stat().st_mtime > 1
        leases.check()


def test_lease_that_is_stale_by_a_clock_and_is_renewed_is_kept(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock was put forward: its holder runs, and renews it a moment later."""
    monkeypatch.setattr(lease, "_CONFIRM_S", 0.5)
    with Leases() as leases:
        _lease(checkpoint, replace(Holder.here(), host="elsewhere"), age_s=3600)
        renewing = threading.Timer(0.1, os.utime, (checkpoint.parent / ".bids.lease.1",))
        renewing.start()
        with pytest.raises(RunError, match=r"held by process .* on elsewhere"):
            leases.take(checkpoint)
        renewing.join()


def test_stale_leases_are_watched_together(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flow with many queries does not wait for each of them in turn."""
    monkeypatch.setattr(lease, "_CONFIRM_S", 0.4)
    checkpoints = [checkpoint.with_name(f"q{number}") for number in range(10)]
    elsewhere = replace(Holder.here(), host="elsewhere")
    for each in checkpoints:
        _lease(each, elsewhere, age_s=STALE_S + 5)
    began_s = time.monotonic()

    with Leases() as leases:
        leases.take(*checkpoints)

    assert 0.4 <= time.monotonic() - began_s < 4


def test_lease_with_a_time_in_the_future_is_taken_if_nobody_renews_it(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a clock was put back: the file's age says nothing until then."""
    monkeypatch.setattr(lease, "STALE_S", 0.3)
    elsewhere = replace(Holder.here(), host="elsewhere")
    held = checkpoint.parent / ".bids.lease.1"
    with Leases() as leases:
        _lease(checkpoint, elsewhere, age_s=-3600)
        renewing = threading.Timer(0.1, os.utime, (held,))
        renewing.start()
        with pytest.raises(RunError, match=r"held by process .* on elsewhere"):
            leases.take(checkpoint)
        renewing.join()

        _lease(checkpoint, elsewhere, age_s=-3600)
        leases.take(checkpoint)


def test_one_of_many_contenders_takes_a_stale_lease(checkpoint: Path) -> None:
    """The first one, in every round."""
    for number in range(20):
        _lease(checkpoint, replace(Holder.here(), host="elsewhere"), 10 * number + 1, age_s=STALE_S + 5)
        contenders = [Leases() for _ in range(8)]
        barrier = threading.Barrier(len(contenders))
        won: list[Leases] = []

        def contend(one: Leases, barrier: threading.Barrier = barrier, won: list[Leases] = won) -> None:
            barrier.wait()
            with suppress(RunError):
                one.take(checkpoint)
                won.append(one)

        threads = [threading.Thread(target=contend, args=(one,)) for one in contenders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1


def test_delayed_contender_takes_nothing(checkpoint: Path) -> None:
    """While it was about to take a stale lease, a second took and released it, and a third took that."""

    class Delayed(Leases):
        def _require_free(self, leases: Mapping[Path, Path]) -> None:
            super()._require_free(leases)
            with Leases() as second:
                second.take(checkpoint)
            third.take(checkpoint)

    _lease(checkpoint, replace(Holder.here(), host="elsewhere"), age_s=STALE_S + 5)
    with Leases() as third:
        with Delayed() as late, pytest.raises(RunError, match="is just being started"):
            late.take(checkpoint)
        third.renew()
        third.check()
    assert [file.name for file in checkpoint.parent.iterdir()] == [".bids.lease.3"]


def _lease(checkpoint: Path, holder: Holder, number: int = 1, age_s: float = 0.0) -> None:
    from flowcore.spark.checkpoint.lease import _write  # noqa: PLC0415

    path = checkpoint.parent / f".{checkpoint.name}.lease.{number}"
    path.parent.mkdir(exist_ok=True)
    _write(path, holder)
    os.utime(path, (0, time.time() - age_s))


def test_deadline_is_extended_by_a_whole_renewal_only(checkpoint: Path) -> None:
    """If one of the leases cannot be renewed, or was lost, other processes may take it."""
    renewed: list[float] = []
    with Leases(heartbeat_s=3600, on_renewed=renewed.append) as leases:
        leases.take(checkpoint)
        leases.take(checkpoint.with_name("asks"))
        before = running_s()

        leases.renew()

        assert len(renewed) == 1
        assert before <= renewed[0] <= running_s()
        for lease in checkpoint.parent.glob(".asks.lease.*"):
            lease.unlink()
        leases.renew()
        assert len(renewed) == 1


def test_missing_folder_is_not_taken_for_another_holder(checkpoint: Path) -> None:
    """The queries would continue in an empty folder; the error says what to bring back."""
    with Leases(heartbeat_s=3600) as leases:
        leases.take(checkpoint)
        leases.check()
        shutil.rmtree(checkpoint.parent)
        leases.renew()

        with pytest.raises(MissingStateError, match="is gone, or its disk is not mounted"):
            leases.check()
        (checkpoint / "offsets").mkdir(parents=True)  # as Spark does to write a file
        with pytest.raises(MissingStateError, match="is gone, or its disk is not mounted"):
            leases.check()


@contextmanager
def full_disk() -> Iterator[None]:
    """Files of this process cannot grow."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_start_on_a_full_disk_does_not_keep_the_next_one_away(checkpoint: Path) -> None:
    """Nor does an end: without its content a lease would be held by an unknown process."""
    with Leases() as leases, full_disk(), pytest.raises(OSError, match="File too large"):
        leases.take(checkpoint)
    assert [*checkpoint.parent.iterdir()] == []

    with ExitStack() as stack:
        disk = stack.enter_context(ExitStack())
        leases = stack.enter_context(Leases())
        leases.take(checkpoint)
        disk.enter_context(full_disk())
    (lease,) = checkpoint.parent.iterdir()
    assert json.loads(lease.read_text())["pid"] == os.getpid()
