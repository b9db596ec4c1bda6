"""Java, jars and archives are found, fetched once, and never used incomplete."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner

from flowcore.cli.doctor import doctor
from flowcore.errors import InstallationError
from flowcore.installation import archive, cache, checksums, java
from flowcore.installation.archive import archive_file, compiler_options, driver_options, make_archive
from flowcore.installation.jars import Configuration, jars, jars_folder
from flowcore.installation.java import find_java

ROOT = Path(__file__).parents[3]
JavaHome = Callable[..., Path]

# Stands for Ivy: notes that it was called, then puts one jar per configuration in the given folder.
IVY = """#!/bin/sh
echo call >>"$(dirname "$0")/calls"
for pattern; do :; done
sleep 0.3
whole=${pattern%%/\\[conf\\]*}
for conf in connector broker; do
  mkdir -p "$whole/$conf" && echo jar >"$whole/$conf/kafka-clients-3.9.2.jar"
done
"""


CONFIGURATIONS = get_args(Configuration)
JAR_SHA256 = hashlib.sha256(b"jar\n").hexdigest()
# Another process downloads them: with the same pins.
DOWNLOAD = """
import sys, pathlib
from flowcore.installation import checksums
from flowcore.installation.jars import jars
checksums._PINS = pathlib.Path(sys.argv[1])
print(len(jars("connector")))
"""


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with no Java, no jars and no archive, for which Ivy's stand-in has the right jars."""
    monkeypatch.setenv("FLOWCORE_CACHE", str(tmp_path / "a cache"))
    monkeypatch.setattr(java, "_SYSTEM_JAVAS", tmp_path / "no-javas")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.shutil, "which", lambda _name: None)
    pins = tmp_path / "jars.sha256"
    pins.write_text(
        "".join(f"{JAR_SHA256}  {conf}/kafka-clients-3.9.2.jar  a:b:1\n" for conf in CONFIGURATIONS)
    )
    monkeypatch.setattr(checksums, "_PINS", pins)


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
    """Spark 4.3 runs on Java 17 to 21, so other versions are refused."""
    monkeypatch.setenv("JAVA_HOME", str(java_home(version)))
    if fits:
        assert find_java().version == int(version.partition(".")[0])
    else:
        with pytest.raises(InstallationError, match=f"JAVA_HOME: .* is Java {version}"):
            find_java()


def test_find_java_ignores_an_unsupported_java_home(
    java_home: JavaHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old JAVA_HOME does not hide a supported Java of the system."""
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


def test_find_java_names_the_command_when_there_is_none() -> None:
    """The message ends with the command that installs Java."""
    with pytest.raises(InstallationError, match=r"found no Java 17 to 21 .*; run: \S+"):
        find_java()


def test_jars_are_downloaded_once_by_two_processes(
    java_home: JavaHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two concurrent processes, the second waits and uses the first one's jars."""
    home = java_home("17.0.1", IVY)
    monkeypatch.setenv("JAVA_HOME", str(home))
    command = [sys.executable, "-c", DOWNLOAD, checksums._PINS]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]

    assert [process.communicate()[0] for process in both] == ["1\n", "1\n"]
    assert (home / "bin/calls").read_text() == "call\n"


def test_downloaded_jars_are_the_pinned_ones(java_home: JavaHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror that serves another file changes nothing on this machine."""
    monkeypatch.setenv("JAVA_HOME", str(java_home("17.0.1", IVY.replace("echo jar", "echo evil"))))

    with pytest.raises(InstallationError, match=rf"{JAR_SHA256}.* thrown away; .* run: flowcore setup"):
        jars("connector")
    assert not jars_folder().exists()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda jar: jar.write_bytes(b"evil"), "has the SHA-256 .*, not "),
        (lambda jar: jar.with_name("evil.jar").write_bytes(b"jar\n"), "evil.jar is not one of its jars"),
        (lambda jar: jar.unlink(), "is missing"),
    ],
    ids=["changed", "added", "removed"],
)
def test_changed_jars_are_refused_at_start(
    java_home: JavaHome, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object], problem: str
) -> None:
    """The error names the jar and says what to do; the other configuration is not concerned."""
    monkeypatch.setenv("JAVA_HOME", str(java_home("17.0.1", IVY)))
    change(jars("connector")[0])

    with pytest.raises(InstallationError, match=rf"jar connector/.*{problem}.* delete that folder and run"):
        jars("connector")
    assert len(jars("broker")) == 1


def test_pinned_jars_are_those_of_the_list_that_ivy_resolves() -> None:
    """Each jar of `ivy.xml` is pinned, and the digests are those of the published files."""
    folder = Path(checksums.__file__).parent
    ivy = (folder / "ivy.xml").read_text()
    named = re.findall(r'name="(\S+)" rev="(\S+)" conf="(\w+)->', ivy)
    lines = (folder / "jars.sha256").read_text().splitlines()

    assert {f"{conf}/{name}-{rev}.jar" for name, rev, conf in named} <= {line.split()[1] for line in lines}
    form = re.compile(r"[0-9a-f]{64}  (connector|broker)/(\S+)-(\S+)\.jar  \S+:\2:\3")
    assert all(form.fullmatch(line) for line in lines)


@pytest.mark.parametrize("level", [0, 1, 2, 3], ids=["cache", "jars", "version", "configuration"])
def test_cache_that_others_may_write_is_refused(
    java_home: JavaHome, monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    """Others who write there could choose the code that Spark runs."""
    monkeypatch.setenv("JAVA_HOME", str(java_home("17.0.1", IVY)))
    folder = jars("connector")[0].parent
    (folder, *folder.parents)[3 - level].chmod(0o775)

    with pytest.raises(InstallationError, match=r"can be written by others \(mode 775\).* chmod -R go-w "):
        jars("connector")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_cache_of_another_user_is_refused(java_home: JavaHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root does not run what a user has put there."""
    monkeypatch.setenv("JAVA_HOME", str(java_home("17.0.1", IVY)))
    os.chown(jars("connector")[0], 12_345, -1)

    with pytest.raises(InstallationError, match=r"belongs to user 12345: .* sudo chown -R 0 "):
        jars("connector")


def test_cache_is_the_users_whatever_the_umask(java_home: JavaHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """A umask that lets the group write does not let it write here."""
    monkeypatch.setenv("JAVA_HOME", str(java_home("17.0.1", IVY)))
    before = os.umask(0)
    try:
        assert len(jars("connector")) == 1
    finally:
        os.umask(before)


def test_existing_jars_need_no_java(java_home: JavaHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call starts no process and opens no connection."""
    monkeypatch.setenv("JAVA_HOME", str(java_home("17.0.1", IVY)))
    first = jars("broker")
    monkeypatch.delenv("JAVA_HOME")

    assert jars("broker") == first


def test_failed_download_leaves_no_jars(java_home: JavaHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder appears only when complete, and the error names the command to run."""
    monkeypatch.setenv("JAVA_HOME", str(java_home("17.0.1", IVY + "echo UNRESOLVED; exit 1\n")))

    with pytest.raises(InstallationError, match=r"UNRESOLVED.*flowcore setup"):
        jars("connector")
    assert not jars_folder().exists()


def test_jars_survive_a_killed_download(java_home: JavaHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a killed process are removed, and the download is repeated."""
    home = java_home("17.0.1", IVY.replace("sleep 0.3", "sleep 30"))
    monkeypatch.setenv("JAVA_HOME", str(home))
    killed = subprocess.Popen(
        [sys.executable, "-c", DOWNLOAD, checksums._PINS], start_new_session=True, stdout=subprocess.DEVNULL
    )
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
    """Without an archive Spark starts normally; an archive of this class path is quoted for its launcher."""
    without = compiler_options(short_lived=False)
    assert driver_options() == without
    assert driver_options(short_lived=True) == ["-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m"]
    archive_file().parent.mkdir()
    archive_file().write_text("archive")
    assert driver_options()[0] == f'"-XX:SharedArchiveFile={archive_file()}"'

    archive_file().chmod(0o666)
    with pytest.raises(InstallationError, match=r"can be written by others"):
        driver_options()
    archive_file().chmod(0o644)

    os.utime(jars("connector")[0], (1, 1))

    assert driver_options() == without


@pytest.mark.usefixtures("with_jars")
def test_archive_is_made_whole_and_once(tmp_path: Path) -> None:
    """Only the first caller creates it, and old archives beyond three are removed."""
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
def test_archive_in_use_stays_when_others_are_made() -> None:
    """Several environments share a cache; the archive of one of them is older than all others."""
    folder = archive_file().parent
    folder.mkdir()
    for age in range(1, 5):
        (folder / f"spark-{age}.jsa").write_text("")
        os.utime(folder / f"spark-{age}.jsa", (age, age))
    used = make_archive(["/bin/sh", "-c", 'echo archive >"$0"'])
    os.utime(used, (0, 0))
    driver_options()
    os.utime(jars("connector")[0], (1, 1))  # another environment

    made = make_archive(["/bin/sh", "-c", 'echo archive >"$0"'])

    assert sorted(folder.glob("*.jsa")) == sorted([made, used, folder / "spark-4.jsa"])


@pytest.mark.usefixtures("with_jars")
def test_failed_archive_reports_its_reason_and_leaves_no_file() -> None:
    """The message contains the last error of the failed job."""
    with pytest.raises(InstallationError, match=r"exit code 1, ValueError: no"):
        make_archive([sys.executable, "-c", "raise ValueError('no')"])
    assert not archive_file().exists()


def test_doctor_fails_and_names_the_command_when_java_is_missing() -> None:
    """Each failed row names its fix, and a missing requirement gives exit code 1."""
    answer = CliRunner().invoke(doctor, ["--json"])

    assert answer.exit_code == 1
    rows = {row["name"]: row for row in json.loads(answer.stdout)}
    assert rows["Python"]["status"] == "ok"
    assert rows["Java"]["status"] == rows["Connector jars"]["status"] == "missing"
    assert rows["Class archive"]["status"] == "warn"
    assert all(row["mend"] for row in rows.values() if row["status"] != "ok")


@pytest.mark.usefixtures("with_jars")
def test_doctor_says_which_jar_was_changed() -> None:
    """A changed jar is as bad as a missing one."""
    jars("connector")[0].write_bytes(b"evil")

    answer = CliRunner().invoke(doctor, ["--json"])

    rows = {row["name"]: row for row in json.loads(answer.stdout)}
    assert answer.exit_code == 1
    assert rows["Connector jars"]["status"] == "missing"
    assert "kafka-clients-3.9.2.jar has the SHA-256" in rows["Connector jars"]["found"]
    assert rows["Connector jars"]["mend"].endswith("then delete that folder and run: flowcore setup")
    assert rows["Broker jars"]["status"] == "ok"


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


def test_second_process_says_that_it_waits_for_the_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """To make a class archive takes minutes on a busy machine."""
    waiting = threading.Thread(
        target=lambda: contextlib.ExitStack().enter_context(cache.lock_folder(tmp_path))
    )

    with cache.lock_folder(tmp_path):
        waiting.start()
        deadline = time.monotonic() + 60
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.01)
    waiting.join(60)

    assert caplog.messages == [f"waiting for another process that writes to {tmp_path}"]
    assert not waiting.is_alive()
