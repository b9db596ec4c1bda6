"""Streams of one run share its files: each test runs once, and fixtures of a session serve several files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFTEST = """
import os, pathlib, pytest

@pytest.fixture(scope="session")
def stream():
    yield os.getpid()
    print(f"session {os.getpid()} ends")

@pytest.fixture(scope="module")
def file():
    yield
    print(f"file {os.getpid()} ends")
"""
FILE = """
import pytest, time

@pytest.mark.parametrize("number", range(3))
def test_it(number, stream, file):
    time.sleep(0.2)
    print(f"ran {__name__}-{number} in {stream}")
"""
FILES = 6


def _start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    given = ["-p", "tests.streams", "--claims", str(folder / "claims"), "-p", "no:cacheprovider", "-q", "-s"]
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", str(folder), *given]
    return subprocess.Popen([*command, *arguments, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of test files, and one for claims."""
    (tmp_path / "claims").mkdir()
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for number in range(FILES):
        (tmp_path / f"test_{number}.py").write_text(FILE)
    return tmp_path


def test_each_test_runs_in_one_stream(folder: Path) -> None:
    """Two streams run all files, none twice; each has one session, and ends the fixtures of each file."""
    streams = [_start(folder) for _ in range(2)]
    texts = [stream.communicate(timeout=60)[0] for stream in streams]

    assert [stream.returncode for stream in streams] == [0, 0]
    ran = [re.findall(r"ran (test_\d-\d)", text) for text in texts]
    assert sorted(ran[0] + ran[1]) == [
        f"test_{file}-{number}" for file in range(FILES) for number in range(3)
    ]
    for text, mine in zip(texts, ran, strict=True):
        assert len(mine) >= 3
        assert len(re.findall(r"session \d+ ends", text)) == 1
        assert len(re.findall(r"file \d+ ends", text)) == len(mine) / 3


def test_stream_begins_with_a_folder(folder: Path) -> None:
    """The others follow in their order."""
    (folder / "z").mkdir()
    (folder / "z" / "test_z.py").write_text("def test_it(): print('ran z')")

    stream = _start(folder, "--begin", str(folder / "z"))
    text = stream.communicate(timeout=60)[0]

    assert stream.returncode == 0
    assert re.findall(r"ran (z|test_\d)", text)[:4] == ["z", *["test_0"] * 3]


def test_failed_test_fails_its_stream(folder: Path) -> None:
    """A file that another stream has claimed is left out; `-x` ends a stream after its first failure."""
    for number in range(FILES):
        (folder / f"test_{number}.py").write_text("def test_it(): assert False")
    (folder / "claims" / str(folder / "test_0.py").replace("/", ".")).touch()

    stream = _start(folder, "-x")
    text = stream.communicate(timeout=60)[0]

    assert stream.returncode == 1
    assert "1 failed" in text
    assert "test_1.py" in text
    assert (folder / "claims" / "failed").read_text() == "test_1.py::test_it\n"


def test_file_that_cannot_be_imported_fails_every_stream(folder: Path) -> None:
    """No test runs, as without streams."""
    (folder / "test_0.py").write_text("import no_such_module")

    stream = _start(folder)
    text = stream.communicate(timeout=60)[0]

    assert stream.returncode == 2
    assert "no_such_module" in text
    assert not re.findall(r"ran test", text)
