"""Jars are fetched once, are the pinned ones, and are never used incomplete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flowcore.errors import InstallationError
from flowcore.installation import checksums
from flowcore.installation.jars import jars, jars_folder
from tests.unit.installation.stand_ins import IVY, JAR_SHA256, JavaHome

# Another process downloads them: with the same pins.
DOWNLOAD = """
import sys, pathlib
from flowcore.installation import checksums
from flowcore.installation.jars import jars
checksums._PINS = pathlib.Path(sys.argv[1])
print(len(jars("connector")))
"""


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
