"""`deploy/setup` names what it lacks."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_setup_names_the_command_when_python_is_missing(tmp_path: Path) -> None:
    """Without a supported Python, set-up prints one line with the command that installs one."""
    clone, programs = tmp_path / "a clone", tmp_path / "bin"
    (clone / "deploy").mkdir(parents=True)
    programs.mkdir()
    (clone / "deploy/setup").write_bytes((ROOT / "deploy/setup").read_bytes())
    for name in ("requirements.lock", "pyproject.toml", "deploy/build.lock"):
        (clone / name).write_text("")
    for name in ("dirname", "cat", "sha256sum", "cut", "id"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    done = subprocess.run(
        ["/bin/bash", clone / "deploy/setup"],
        env={"PATH": str(programs)}, cwd="/", capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 1
    assert done.stderr == (
        "setup: found no Python 3.11 or newer on PATH; run: sudo apt-get install -y python3 python3-venv\n"
    )
