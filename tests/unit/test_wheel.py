"""The built wheel carries everything that the installed package needs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content of site-packages, made by the command of the README."""
    folder = tmp_path_factory.mktemp("wheel")
    (line,) = re.findall(r"flows/bin/pip (wheel .*?) +#", (CHECKOUT / "README.md").read_text())
    # The environment of the tests has what builds it, so that nothing is downloaded.
    command = [
        sys.executable,
        "-m",
        "pip",
        *line.replace(" dist ", f" {folder} ").split(),
        "--no-build-isolation",
    ]
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


def test_wheel_writes_the_configuration_of_dagster(installed: Path, tmp_path: Path) -> None:
    """One that was changed is kept."""
    home = tmp_path / "dagster"
    code = (
        f"import sys; sys.path.insert(0, {str(installed)!r})\n"
        f"sys.argv = ['flowcore', 'setup', '--dagster-home', {str(home)!r}]\n"
        "from flowcore.cli.main import main; main()"
    )

    def write() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", "-c", code]
        return subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)

    found = [write(), write()]
    assert [each.returncode for each in found] == [0, 0], found[0].stderr
    assert (home / "dagster.yaml").read_text() == (CHECKOUT / "flowcore/dagster/dagster.yaml").read_text()
    (home / "dagster.yaml").write_text("telemetry: {enabled: true}")
    assert "is there and differs" in write().stderr
    assert (home / "dagster.yaml").read_text() == "telemetry: {enabled: true}"


def test_wheel_installs_one_top_level_package(installed: Path) -> None:
    """`pipelines` is not installed, since another project may have a package of that name."""
    packages = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}

    assert packages == {"flowcore"}


def test_bench_without_a_checkout_names_the_fix(installed: Path, tmp_path: Path) -> None:
    """The error is one line without a traceback."""
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


TYPED = """
from datetime import timedelta

from flowcore import Flow, KafkaTopic, Parquet, Tumbling

auctions = Flow("a").read("auctions", Parquet("auctions", schema="id BIGINT, price BIGINT"))
reveal_type(auctions)
reveal_type(auctions.window(Tumbling(timedelta(minutes=1)), by="id"))
reveal_type(KafkaTopic("bids").events)
Flow(1)
"""


def test_wheel_shows_its_types_to_a_type_checker(installed: Path, tmp_path: Path) -> None:
    """The wheel has the marker of PEP 561, so mypy --strict reads the types of the public API from it."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site / "installed.pth").write_text(f"{installed}\n{sysconfig.get_path('purelib')}\n")
    (tmp_path / "program.py").write_text(TYPED)
    python = tmp_path / "env" / "bin" / "python"

    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), "program.py"],
        cwd=tmp_path, check=False, capture_output=True, text=True,
        env={"PATH": "/usr/bin:/bin"},  # without a PYTHONPATH that names the checkout
    )  # fmt: skip

    lines = re.sub(r"flowcore\.api\.\w+\.", "", found.stdout).splitlines()
    messages = [line.partition(": ")[2] for line in lines[:-1]]
    assert messages == [
        'note: Revealed type is "Stream"',
        'note: Revealed type is "WindowedStream[Stream]"',
        'note: Revealed type is "str"',
        'error: Argument 1 to "Flow" has incompatible type "int"; expected "str"  [arg-type]',
    ], found.stdout + found.stderr
