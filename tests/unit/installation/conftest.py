"""Fixtures of a machine on which nothing is installed."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from flowcore.installation import checksums, java
from flowcore.installation.jars import Configuration, jars
from tests.unit.installation.stand_ins import IVY, JAR_SHA256, JavaHome

CONFIGURATIONS = get_args(Configuration)


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


@pytest.fixture
def with_jars(java_home: JavaHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home("17.0.1", IVY)))
    jars("connector")
