"""`deploy/check` runs every test file."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
ASKED_FOR = {"benchmarks", "contract", "images", "unit"}
"""Folders that the paths of engine tests leave out: others run them, or a command of its own does."""


def test_default_run_has_every_file_of_engine_tests() -> None:
    """A pattern that leaves one out would hide what fails in it."""
    (paths,) = re.findall(
        r"^ +paths=\((.*?)\)", (ROOT / "deploy/check").read_text(), re.MULTILINE | re.DOTALL
    )
    listed = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {' '.join(paths.split())}"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    folders = [path for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name not in ASKED_FOR]
    every = {str(file.relative_to(ROOT)) for folder in folders for file in folder.rglob("test_*.py")}

    found = {path for path in listed if path.endswith(".py")}
    found |= {
        str(file.relative_to(ROOT))
        for path in listed
        if not path.endswith(".py")
        for file in (ROOT / path).rglob("test_*.py")
    }

    assert every - found == set()
    assert all((ROOT / path).exists() for path in listed)
