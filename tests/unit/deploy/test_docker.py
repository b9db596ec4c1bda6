"""deploy/docker.sh stops only the engine that it has started."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# The engine answers while the file `up` is there, and takes it away when it ends.
PROGRAMS = {
    "id": "echo 0",
    "docker": '[ -e "$ENGINE/up" ]',
    "dockerd": 'trap \'rm "$ENGINE/up"; exit\' TERM; echo start >>"$ENGINE/starts"; touch "$ENGINE/up"\n'
    "while :; do sleep 0.05; done",
}


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that simulates the machine's engine."""
    (tmp_path / "bin").mkdir()
    for name, script in PROGRAMS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("ENGINE", str(tmp_path))
    return tmp_path


def docker(verb: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", ROOT / "deploy/docker.sh", verb, folder], capture_output=True, text=True, check=False
    )


def test_docker_engine_is_started_and_stopped_where_none_runs(engine: Path) -> None:
    """`start` returns when the engine answers; `stop` ends it."""
    assert docker("start", engine / "state").returncode == 0
    assert (engine / "up").exists()
    assert docker("stop", engine / "state").returncode == 0
    assert not (engine / "up").exists()


def test_docker_engine_that_ran_before_is_left_alone(engine: Path) -> None:
    """`start` and `stop` do not touch an engine of another owner."""
    (engine / "up").touch()
    assert docker("start", engine / "state").returncode == 0
    assert docker("stop", engine / "state").returncode == 0
    assert (engine / "up").exists()
    assert not (engine / "starts").exists()


def test_docker_engine_that_cannot_start_shows_its_last_lines(engine: Path) -> None:
    """The exit code is 1, and the output contains the engine's message."""
    (engine / "bin/dockerd").write_text("#!/bin/bash\necho no cgroups; exit 3\n")
    done = docker("start", engine / "state")

    assert done.returncode == 1
    assert done.stderr == "no cgroups\ndocker: the engine did not start; its last lines are above\n"
