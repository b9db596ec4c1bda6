"""Folders for the temporary files of JVMs: who removes them, and when."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowcore.spark.run.scratch import make_scratch, remove_scratch


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    remove_scratch()


def _run(program: str, *arguments: str) -> subprocess.Popen[str]:
    program = (
        f"from flowcore.spark.run.scratch import make_scratch; print(make_scratch(), flush=True); {program}"
    )
    command = [sys.executable, "-c", f"import sys, os, time; {program}", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _made_by(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    (folder / "library.so").write_bytes(b"library")
    return folder


def test_folder_of_a_killed_process_is_removed_at_the_next_start() -> None:
    """The folder of a running process stays."""
    with _run("time.sleep(60)") as killed, _run("time.sleep(60)") as lives:
        abandoned, used = _made_by(killed), _made_by(lives)
        killed.kill()
        killed.wait()

        mine = make_scratch()

        lives.kill()
    assert not abandoned.exists()
    assert used.exists()
    assert mine.exists()


def test_folder_of_a_jvm_that_outlives_its_process_stays() -> None:
    """The JVM may be in the middle of an upload of its state."""
    with _run("time.sleep(60)") as killed:
        folder = _made_by(killed)
        killed.kill()
    sleep = "import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", sleep, f"-Djava.io.tmpdir={folder}"]) as jvm:
        make_scratch()
        kept = folder.exists()
        jvm.kill()
    make_scratch()

    assert kept
    assert not folder.exists()


def test_own_folder_is_removed_at_the_end() -> None:
    """A later start makes another one."""
    first = make_scratch()

    remove_scratch()

    assert not first.exists()
    assert make_scratch() != first


def test_link_is_not_followed(tmp_path: Path) -> None:
    """Another user may write to the folder of temporary files."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (tmp_path / "flowcore-scratch-1").symlink_to(folder)

    make_scratch()

    assert folder.exists()
