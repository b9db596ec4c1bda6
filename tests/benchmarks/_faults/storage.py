"""Faults of the state folder: full, torn, damaged, gone."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from flowcore import errors
from flowcore.errors import DeliveryError, FlowcoreError, ResultError, StateError
from flowcore.spark.checkpoint.offset_log import next_batch
from tests.benchmarks._faults.catalog import Catalog
from tests.benchmarks._faults.driver import Driver, wait_until
from tests.benchmarks._faults.kills import kill_in_batch, run_stages
from tests.benchmarks._faults.sales import PARTITIONS
from tests.benchmarks._faults.scenario import BOTH, Scenario
from tests.benchmarks._faults.trial import Trial

__all__ = ["STORAGE", "require_outage"]

_MIB = 1 << 20
_READ_AT_START = ("checkpoints/*/metadata", "checkpoints/*/watermarks.json", "checkpoints/*.plan.json")
"""Files of flowcore below the folder of a flow that a start needs whole."""
_IGNORED_IF_TORN = ("checkpoints/*.backlog/*.json", "progress/*.jsonl")


def _disk_full(trial: Trial) -> None:
    """The file system of the state folder is full for some seconds, from a random moment on."""
    _mount_small(trial)
    trial.send(600)
    trial.close_windows()
    driver = trial.start()
    trial.wait_copies(trial.random.randint(1, 300), driver)
    filler = trial.state / "filler"
    _fill(filler)
    end = time.monotonic() + trial.random.uniform(3, 15)
    while time.monotonic() < end and not driver.ended:
        time.sleep(0.1)
        _fill(filler)  # what the driver has freed
    filler.unlink()
    trial.recover(driver)


def _full_at_start(trial: Trial) -> None:
    """The file system of the state folder is full before a start, the first one or a later one."""
    _mount_small(trial)
    trial.send(600)
    trial.close_windows()
    if trial.random.random() < 0.5:
        trial.notes.append("later start")
        driver = trial.start()
        trial.wait_copies(trial.random.randint(1, 300), driver)
        driver.kill()
    filler = trial.state / "filler"
    _fill(filler)
    driver = trial.start()
    end = time.monotonic() + 120
    while time.monotonic() < end and not driver.ended:
        time.sleep(0.1)
    if driver.ended:
        require_outage(trial, driver)
    filler.unlink()
    trial.recover(driver)


def _mount_small(trial: Trial) -> None:
    """Mount a small file system at the state folder."""
    trial.state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m,mode=700", "tmpfs", trial.state], check=True)
    trial.on_close(lambda: subprocess.run(["umount", "-l", trial.state], check=True))


def _read_only(trial: Trial) -> None:
    """The file system of the checkpoints is read-only for some time, as after an error of its disk."""
    folder = trial.checkpoint.parent
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700", "tmpfs", folder], check=True)
    trial.on_close(lambda: subprocess.run(["umount", "-l", folder], check=True))
    trial.send(600)
    trial.close_windows()
    driver = trial.start()
    trial.wait_copies(trial.random.randint(1, 300), driver)
    read_only = ["mount", "-o", "remount,ro", str(folder)]
    wait_until(
        lambda: subprocess.run(read_only, check=False, capture_output=True).returncode == 0,
        60, f"{folder} is read-only, for which no file may be open", 0.01,
    )  # fmt: skip
    seconds = trial.random.choice((trial.random.uniform(2, 15), trial.random.uniform(30, 60)))
    trial.notes.append(f"{seconds:.0f} s")
    time.sleep(seconds)
    if driver.ended:
        require_outage(trial, driver)
    subprocess.run(["mount", "-o", "remount,rw", folder], check=True)
    trial.recover(driver)
    if driver.error:
        require_outage(trial, driver)


def require_outage(trial: Trial, driver: Driver) -> None:
    """The error of a driver is one after which supervision starts it again without end."""
    name = driver.error.removeprefix("flowcore.errors.").partition(":")[0]
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, errors.OutageError)):
        trial.problems.append(f"the run ended with an error that is not an outage: {driver.error[:200]}")


def _torn(log: str) -> Callable[[Trial], None]:
    """The last file of a log is half written, as after a power failure."""

    def play(trial: Trial) -> None:
        _run_and_kill(trial)
        folder = trial.checkpoint / log
        last = max(int(file.name) for file in folder.iterdir() if file.name.isdigit())
        torn = folder / str(last)
        kept = trial.random.randrange(torn.stat().st_size)
        trial.notes.append(f"{log}/{last} cut to {kept} bytes")
        whole = torn.read_bytes()
        os.truncate(torn, kept)
        if trial.random.random() < 0.5:
            (folder / f".{last}.crc").unlink(missing_ok=True)
        try:
            trial.finish()
        except FlowcoreError as error:
            _note_refusal(trial, error, torn)
            torn.write_bytes(whole)
            trial.finish()
        else:
            trial.notes.append("repeated the batch")

    return play


def _torn_file(trial: Trial) -> None:
    """A file of flowcore in the state folder is cut: refused until it is whole again, or ignored."""
    _run_and_kill(trial)
    folder = trial.checkpoint.parents[1]
    needed = [file for pattern in _READ_AT_START for file in folder.glob(pattern)]
    others = [file for pattern in _IGNORED_IF_TORN for file in sorted(folder.glob(pattern))[-1:]]
    files = [file for file in (*needed, *others) if file.stat().st_size]
    torn = files[trial.seed % len(files)]
    whole = _cut(trial, torn)
    try:
        trial.finish()
    except FlowcoreError as error:
        _note_refusal(trial, error, torn)
        command = str(error).partition("write it again: ")[2].partition(", or ")[0]
        if command:
            subprocess.run(["sh", "-c", command], check=True)
        else:
            torn.write_bytes(whole)
        trial.finish()
    else:
        if torn in needed:
            trial.problems.append(f"the start has ignored that {torn} is cut")


def _torn_manifest(trial: Trial) -> None:
    """The manifest of a bounded result is cut: refused with its name, and the stage runs again without it."""
    trial.create_topics()
    catalog = Catalog(str(trial.folder / "data"))
    catalog.add_orders(0, 500)
    run_stages(trial, catalog)
    manifest = min(trial.state.rglob("manifest.json"), key=lambda file: len(file.parts))
    _cut(trial, manifest)
    catalog.add_orders(1, 500)
    try:
        run_stages(trial, catalog)
    except ResultError as error:
        trial.notes.append("ResultError")
        if str(manifest) not in str(error):
            trial.problems.append(f"the error does not name {manifest}: {error}")
        manifest.unlink()
        with trial.recovery():
            run_stages(trial, catalog)
    if (seen := catalog.written()) != catalog.expected():
        trial.problems.append(f"N4: the result is {seen}")


def _cut(trial: Trial, file: Path) -> bytes:
    """Cut a file; returns what it was."""
    whole = file.read_bytes()
    kept = trial.random.randrange(len(whole))
    trial.notes.append(f"{file.relative_to(trial.state)} cut to {kept} bytes")
    os.truncate(file, kept)
    return whole


def _note_refusal(trial: Trial, error: FlowcoreError, file: Path) -> None:
    trial.notes.append(type(error).__name__)
    if not isinstance(error, StateError) or str(file) not in str(error):
        trial.problems.append(f"the error is not a StateError that names {file}: {error}")


def _corrupt_state(trial: Trial) -> None:
    """Files of the last state of a partition are cut: the run stops, and continues when they are back."""
    _run_and_kill(trial)
    version = next_batch(trial.checkpoint)  # that of the state after the last committed batch
    partition = trial.checkpoint / "state" / "0" / str(trial.random.randrange(PARTITIONS))
    files = [file for file in partition.glob(f"{version}_*") if file.suffix in (".changelog", ".zip")]
    whole = {file: file.read_bytes() for file in files}
    for file, content in whole.items():
        os.truncate(file, trial.random.randrange(len(content)))
        file.with_name(f"{file.name}.crc").unlink(missing_ok=True)
    trial.notes.append(f"{len(files)} files of version {version} cut")
    try:
        trial.finish()
    except FlowcoreError as error:
        trial.notes.append(f"{type(error).__name__}: {error}"[:150])
        for file, content in whole.items():
            file.write_bytes(content)
        trial.finish()
    else:
        trial.problems.append("the run did not stop at a damaged state")


def _checkpoint_gone(trial: Trial) -> None:
    """The folder of the checkpoint is missing: refused, and continued when it is back."""
    _run_and_kill(trial)
    away = trial.folder / "away"
    shutil.move(trial.checkpoint, away)
    trial.expect_refusal(StateError, "its folder is missing")
    shutil.move(away, trial.checkpoint)
    trial.finish()


def _state_gone(trial: Trial) -> None:
    """The state folder is gone: at least once begins anew; exactly once is refused until it is back."""
    _run_and_kill(trial)
    away = trial.folder / "away"
    shutil.move(trial.state, away)
    if trial.sales.delivery == "exactly-once":
        trial.expect_refusal(DeliveryError, "as if the state folder were gone")
        shutil.rmtree(trial.state)
        shutil.move(away, trial.state)
    trial.finish()


def _state_gone_running(trial: Trial) -> None:
    """The state folder is moved away while the flow runs: the run ends, and continues when it is back."""
    trial.send(600)
    trial.close_windows()
    driver = trial.start()
    trial.wait_copies(trial.random.randint(1, 300), driver)
    away = trial.folder / "away"
    shutil.move(trial.state, away)
    wait_until(lambda: driver.ended, 60, "the run without its state folder ends")
    require_outage(trial, driver)
    driver.kill()
    shutil.rmtree(trial.state, ignore_errors=True)  # what was written meanwhile
    shutil.move(away, trial.state)
    trial.finish()


def _older(trial: Trial) -> None:
    """An older copy of the checkpoint is back: at least once repeats, exactly once refuses or is right."""
    trial.send(300)
    trial.finish()
    folder = trial.checkpoint.parent
    older, newest = trial.folder / "older", trial.folder / "newest"
    shutil.copytree(folder, older)
    trial.send(900)
    kill_in_batch(trial)
    trial.close_windows()
    shutil.move(folder, newest)
    shutil.move(older, folder)
    try:
        trial.finish()
    except DeliveryError as error:
        trial.notes.append(f"{error}"[:150])
        shutil.rmtree(folder)
        shutil.move(newest, folder)
        trial.finish()
    else:
        trial.notes.append("accepted")


def _run_and_kill(trial: Trial) -> None:
    trial.send(600)
    trial.close_windows()
    driver = trial.start()
    trial.wait_copies(trial.random.randint(150, 450), driver)
    driver.kill()


def _fill(filler: Path) -> None:
    with filler.open("ab", buffering=0) as file:
        size = _MIB
        while size:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2


STORAGE = (
    Scenario(
        id="disk-full", title="no space on the state folder's file system, 3 to 15 s (needs root)",
        play=_disk_full, deliveries=BOTH, limit_s=180,
    ),
    Scenario(
        id="disk-full-at-start", title="no space on the state folder's file system at a start (needs root)",
        play=_full_at_start, deliveries=BOTH, limit_s=180,
    ),
    Scenario(
        id="state-read-only", title="the file system of the checkpoints is read-only, 2 to 60 s (needs root)",
        play=_read_only, deliveries=BOTH, limit_s=180,
    ),
    Scenario(
        id="torn-commit", title="the last file of the commit log is cut", play=_torn("commits"),
        deliveries=BOTH,
    ),
    Scenario(
        id="torn-offsets", title="the last file of the log of offsets is cut", play=_torn("offsets"),
        deliveries=BOTH,
    ),
    Scenario(
        id="torn-file", title="the plan file, the id, the backlog status or the history is cut",
        play=_torn_file, deliveries=BOTH,
    ),
    Scenario(
        id="torn-manifest", title="the manifest of a bounded result is cut", play=_torn_manifest,
    ),
    Scenario(
        id="corrupt-state", title="a file of the state store is cut", play=_corrupt_state, deliveries=BOTH,
    ),
    Scenario(
        id="checkpoint-gone", title="the folder of the checkpoint is missing", play=_checkpoint_gone,
        deliveries=BOTH,
    ),
    Scenario(
        id="checkpoint-older", title="an older copy of the checkpoint is restored", play=_older,
        deliveries=BOTH, limit_s=180,
    ),
    Scenario(
        id="state-gone", title="the state folder is missing at a start", play=_state_gone, deliveries=BOTH,
    ),
    Scenario(
        id="state-gone-running", title="the state folder is moved away while the flow runs",
        play=_state_gone_running, deliveries=BOTH,
    ),
)  # fmt: skip
