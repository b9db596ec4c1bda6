"""What flowcore brings to a machine: found, brought once, and never half."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from flowcore.cli.doctor import doctor
from flowcore.errors import InstallationError
from flowcore.installation import archive, cache, java
from flowcore.installation.archive import archive_file, driver_options, make_archive
from flowcore.installation.jars import jars, jars_folder
from flowcore.installation.java import find_java

ROOT = Path(__file__).parents[3]
JavaHome = Callable[..., Path]

# Stands for Ivy: notes that it was called, then puts one jar per configuration where it is told to.
IVY = """#!/bin/sh
echo call >>"$(dirname "$0")/calls"
for pattern; do :; done
sleep 0.3
whole=${pattern%%/\\[conf\\]*}
for conf in connector broker; do
  mkdir -p "$whole/$conf" && echo jar >"$whole/$conf/kafka-clients-3.9.2.jar"
done
"""


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with no Java, no jars and no archive."""
    monkeypatch.setenv("FLOWCORE_CACHE", str(tmp_path / "a cache"))
    monkeypatch.setattr(java, "_SYSTEM_JAVAS", tmp_path / "no-javas")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.shutil, "which", lambda _name: None)


@pytest.fixture
def java_home(tmp_path: Path) -> JavaHome:
    """Make a Java home of a version, whose program is a shell script."""

    def make(version: str, program: str = "#!/bin/sh\nexit 1\n", modules: str = "java.base") -> Path:
        home = tmp_path / f"java-{version}"
        (home / "bin").mkdir(parents=True)
        (home / "bin/java").write_text(program)
        (home / "bin/java").chmod(0o755)
        (home / "release").write_text(
            f'JAVA_VERSION="{version}"\nMODULES="{modules} jdk.incubator.vector"\nIMPLEMENTOR="Test"\n'
        )
        return home

    return make


@pytest.mark.parametrize(
    ("version", "fits"),
    [("1.8.0_412", False), ("11.0.2", False), ("17.0.15", True), ("21", True), ("25.0.3", False)],
    ids=str,
)
def test_find_java_takes_17_to_21(
    version: str, fits: bool, java_home: JavaHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark 4.3 runs on Java 17 to 21, so that no other is taken."""
    monkeypatch.setenv("JAVA_HOME", str(java_home(version)))
    if fits:
        assert find_java().version == int(version.partition(".")[0])
    else:
        with pytest.raises(InstallationError, match=f"JAVA_HOME: .* is Java {version}"):
            find_java()


def test_find_java_looks_on_when_java_home_is_unfit(
    java_home: JavaHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old JAVA_HOME does not hide a fitting Java of the system."""
    monkeypatch.setenv("JAVA_HOME", str(java_home("11.0.2")))
    home = java_home("21.0.1")
    monkeypatch.setattr(java, "_SYSTEM_JAVAS", tmp_path)

    assert find_java().home == home


def test_find_java_refuses_one_without_the_vector_module(
    java_home: JavaHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trimmed Java that Spark cannot start on is refused before Spark fails on it."""
    home = java_home("17.0.1")
    (home / "release").write_text('JAVA_VERSION="17.0.1"\nMODULES="java.base"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))

    with pytest.raises(InstallationError, match=r"without the module jdk\.incubator\.vector"):
        find_java()


def test_find_java_says_what_to_run_when_there_is_none() -> None:
    """The message ends in the command that mends it."""
    with pytest.raises(InstallationError, match=r"found no Java 17 to 21 .*; run: \S+"):
        find_java()


def test_jars_are_downloaded_once_by_two_processes(
    java_home: JavaHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two processes that need the jars at once, the second waits and takes the first one's."""
    home = java_home("17.0.1", IVY)
    monkeypatch.setenv("JAVA_HOME", str(home))
    program = "from flowcore.installation.jars import jars; print(len(jars('connector')))"
    both = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]

    assert [process.communicate()[0] for process in both] == ["1\n", "1\n"]
    assert (home / "bin/calls").read_text() == "call\n"


def test_jars_need_no_java_when_they_are_there(java_home: JavaHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call starts nothing and asks nobody."""
    monkeypatch.setenv("JAVA_HOME", str(java_home("17.0.1", IVY)))
    first = jars("broker")
    monkeypatch.delenv("JAVA_HOME")

    assert jars("broker") == first


def test_jars_of_a_failed_download_are_not_there(
    java_home: JavaHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the jars is none: the folder only appears whole, and the error says what to do."""
    monkeypatch.setenv("JAVA_HOME", str(java_home("17.0.1", IVY + "echo UNRESOLVED; exit 1\n")))

    with pytest.raises(InstallationError, match=r"UNRESOLVED.*flowcore setup"):
        jars("connector")
    assert not jars_folder().exists()


def test_jars_survive_a_killed_download(java_home: JavaHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed process left is removed, and the download is done again."""
    home = java_home("17.0.1", IVY.replace("sleep 0.3", "sleep 30"))
    monkeypatch.setenv("JAVA_HOME", str(home))
    program = "from flowcore.installation.jars import jars; jars('connector')"
    killed = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    while not (home / "bin/calls").exists():
        assert killed.poll() is None
        time.sleep(0.01)
    os.killpg(killed.pid, 9)
    killed.wait()
    assert list(jars_folder().parent.glob(".partial-*"))
    (home / "bin/java").write_text(IVY)

    assert len(jars("connector")) == 1
    assert not list(jars_folder().parent.glob(".partial-*"))


def test_cache_folder_that_cannot_be_written_is_named(
    tmp_path: Path, java_home: JavaHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the folder and the setting that moves it."""
    monkeypatch.setenv("JAVA_HOME", str(java_home("17.0.1", IVY)))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLOWCORE_CACHE", str(tmp_path / "file"))

    with pytest.raises(InstallationError, match=r"file/jars cannot be written .*FLOWCORE_CACHE"):
        jars("connector")


def test_cache_folder_is_chosen_by_the_first_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLOWCORE_CACHE wins over XDG_CACHE_HOME, which wins over the home folder."""
    monkeypatch.setenv("FLOWCORE_CACHE", "/chosen")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache.cache_folder() == Path("/chosen")
    monkeypatch.delenv("FLOWCORE_CACHE")
    assert cache.cache_folder() == Path("/xdg/flowcore")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_folder() == Path.home() / ".cache/flowcore"


@pytest.fixture
def with_jars(java_home: JavaHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home("17.0.1", IVY)))
    jars("connector")


@pytest.mark.usefixtures("with_jars")
def test_archive_is_used_only_where_one_fits() -> None:
    """Without an archive Spark starts as ever; one for this class path is quoted for its launcher."""
    assert driver_options() == []
    assert driver_options(short_lived=True) == ["-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m"]
    archive_file().parent.mkdir()
    archive_file().write_text("archive")
    assert driver_options()[0] == f'"-XX:SharedArchiveFile={archive_file()}"'

    os.utime(jars("connector")[0], (1, 1))

    assert driver_options() == []


@pytest.mark.usefixtures("with_jars")
def test_archive_is_made_whole_and_once(tmp_path: Path) -> None:
    """The work is run for the first caller only, and old archives beyond three are removed."""
    work = ["/bin/sh", "-c", f'echo x >>"{tmp_path}/calls"; echo archive >"$0"']
    folder = archive_file().parent
    folder.mkdir()
    for age in range(1, 5):
        (folder / f"spark-{age}.jsa").write_text("")
        os.utime(folder / f"spark-{age}.jsa", (age, age))
    made = make_archive(work)
    make_archive(work)

    assert made.read_text() == "archive\n"
    assert (tmp_path / "calls").read_text() == "x\n"
    assert sorted(folder.glob("*.jsa")) == sorted([made, folder / "spark-3.jsa", folder / "spark-4.jsa"])
    assert archive._KEEP == 3


@pytest.mark.usefixtures("with_jars")
def test_archive_that_cannot_be_made_says_why_and_leaves_nothing() -> None:
    """A failing job's last error is in the message."""
    with pytest.raises(InstallationError, match=r"exit code 1, ValueError: no"):
        make_archive([sys.executable, "-c", "raise ValueError('no')"])
    assert not archive_file().exists()


def test_doctor_fails_and_names_the_command_when_java_is_missing() -> None:
    """Each row that is not ok says what mends it, and a missing one makes the exit code 1."""
    answer = CliRunner().invoke(doctor, ["--json"])

    assert answer.exit_code == 1
    rows = {row["name"]: row for row in json.loads(answer.stdout)}
    assert rows["Python"]["status"] == "ok"
    assert rows["Java"]["status"] == rows["Connector jars"]["status"] == "missing"
    assert rows["Class archive"]["status"] == "warn"
    assert all(row["mend"] for row in rows.values() if row["status"] != "ok")


def test_setup_says_in_one_line_that_python_is_missing(tmp_path: Path) -> None:
    """On a machine without a fitting Python, set-up ends with the command that brings one."""
    clone, programs = tmp_path / "a clone", tmp_path / "bin"
    (clone / "deploy").mkdir(parents=True)
    programs.mkdir()
    (clone / "deploy/setup").write_bytes((ROOT / "deploy/setup").read_bytes())
    for name in ("requirements.lock", "pyproject.toml"):
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
