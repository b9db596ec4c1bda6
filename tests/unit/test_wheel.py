"""The built wheel carries everything that the installed package needs."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel puts into site-packages."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_wheel_carries_every_file_of_the_package(installed: Path) -> None:
    """What git tracks below flowcore is in the wheel: ivy.xml, log4j2.properties, scripts."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "flowcore"]
    tracked = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True)

    missing = [name for name in tracked.stdout.split() if not (installed / name).exists()]

    assert "flowcore/installation/ivy.xml" in tracked.stdout
    assert missing == []


def test_wheel_installs_one_top_level_package(installed: Path) -> None:
    """`pipelines` belongs to the checkout: another project may have a package of that name."""
    packages = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}

    assert packages == {"flowcore"}


def test_bench_names_the_way_out_when_there_is_no_checkout(installed: Path, tmp_path: Path) -> None:
    """One line, and no traceback."""
    code = (
        f"import sys; sys.path.insert(0, {str(installed)!r})\n"
        "sys.argv = ['flowcore', 'bench', 'join']\n"
        "from flowcore.cli.main import main; main()"
    )

    found = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=tmp_path, check=False, capture_output=True, text=True
    )

    assert found.returncode != 0
    assert "run this command in a checkout" in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1, found.stderr


def test_wheel_answers_the_doctor_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    """`flowcore doctor` finds its jars by the ivy.xml inside the wheel."""
    code = (
        f"import sys; sys.path.insert(0, {str(installed)!r})\n"
        "import flowcore.installation.jars as jars\n"
        f"assert jars.__file__.startswith({str(installed)!r}), jars.__file__\n"
        "sys.argv = ['flowcore', 'doctor', '--json']\n"
        "from flowcore.cli.main import main; main()"
    )

    found = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=tmp_path, check=False, capture_output=True, text=True
    )

    assert found.returncode == 0, found.stderr
    checks = {check["name"]: check["status"] for check in json.loads(found.stdout)}
    assert checks["Java"] == "ok", checks
