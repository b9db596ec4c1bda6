"""A supported Java is found, and others are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowcore.errors import InstallationError
from flowcore.installation import java
from flowcore.installation.java import find_java
from tests.unit.installation.stand_ins import JavaHome


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
