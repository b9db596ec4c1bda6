"""The Java on this machine that can run Spark and the embedded broker.

The first that fits of JAVA_HOME, PATH and the folder of Linux distributions. The `release` file in a Java's
home says whether it fits, so no JVM is started.
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flowcore.errors import InstallationError

__all__ = ["NEWEST", "OLDEST", "Java", "find_java", "install_command"]

OLDEST, NEWEST = 17, 21
"""The versions that PySpark 4.3 is tested with; those between work too."""

_SYSTEM_JAVAS = Path("/usr/lib/jvm")
_SPARK_MODULE = "jdk.incubator.vector"
_DEBIAN_WITHOUT_JAVA_17 = 13


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark runs on.

    Args:
        home: The JAVA_HOME with which PySpark starts this Java.
        version: The feature release, for example 17.
        build: The full version, for example `17.0.15+6 (Debian)`; a class archive fits one build.
    """

    executable: Path
    home: Path
    version: int
    build: str


def find_java() -> Java:
    """Find the Java for Spark and the broker.

    Returns:
        The first that fits of JAVA_HOME, PATH and the system's folder.

    Raises:
        InstallationError: No Java fits; the message lists those found and the command to install one.
    """
    unfit: list[str] = []
    for origin, home in _homes():
        found = _judge(home)
        if isinstance(found, Java):
            return found
        unfit.append(f"{origin}: {found}")
    seen = "; ".join(unfit) or "none on JAVA_HOME, PATH or in /usr/lib/jvm"
    message = (
        f"found no Java {OLDEST} to {NEWEST} ({seen}): Spark and the broker cannot start; "
        f"run: {install_command()}"
    )
    raise InstallationError(message)


def install_command() -> str:
    """The command that installs a fitting Java on this kind of machine."""
    if platform.system() == "Darwin":
        return "brew install openjdk@17"
    if shutil.which("apt-get"):
        system = platform.freedesktop_os_release()
        major = system.get("VERSION_ID", "").partition(".")[0]
        is_debian = system.get("ID") == "debian"
        release = 21 if is_debian and major.isdigit() and int(major) >= _DEBIAN_WITHOUT_JAVA_17 else 17
        sudo = "" if os.geteuid() == 0 else "sudo "
        return f"{sudo}apt-get install -y openjdk-{release}-jre-headless"
    return f"export JAVA_HOME=<the home of a Java {OLDEST} or {NEWEST}>"


def _homes() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if executable := shutil.which("java"):
        yield "PATH", Path(executable).resolve().parent.parent
    if _SYSTEM_JAVAS.is_dir():
        for home_dir in sorted(_SYSTEM_JAVAS.iterdir()):
            if (home_dir / "bin/java").exists():
                yield str(_SYSTEM_JAVAS), home_dir.resolve()


def _judge(home: Path) -> Java | str:
    """The Java in this home, or what is wrong with it."""
    executable = home / "bin/java"
    if not os.access(executable, os.X_OK):
        return f"{home} has no bin/java"
    release = _release(home, executable)
    number = release.get("JAVA_VERSION", "")
    match = re.match(r"(?:1\.)?(\d+)", number)
    if match is None:
        return f"{home} does not name its version"
    version = int(match[1])
    if not OLDEST <= version <= NEWEST:
        return f"{home} is Java {number}"
    if _SPARK_MODULE not in release.get("MODULES", _SPARK_MODULE):
        return f"{home} is Java {number} without the module {_SPARK_MODULE}, which Spark needs"
    build = release.get("JAVA_RUNTIME_VERSION", number)
    return Java(executable, home, version, f"{build} {release.get('IMPLEMENTOR', '')}".strip())


def _release(home: Path, executable: Path) -> dict[str, str]:
    try:
        text = (home / "release").read_text(encoding="utf-8")
    except OSError:
        return _run_version(executable)
    return {key: value.strip('"') for key, _, value in (line.partition("=") for line in text.splitlines())}


def _run_version(executable: Path) -> dict[str, str]:
    """The same from the program itself, for a home without a `release` file."""
    try:
        answer = subprocess.run(  # noqa: S603 -- the path was just found on this machine
            [executable, "-version"], capture_output=True, text=True, timeout=30, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return {}
    number = re.search(r'version "([^"]+)"', answer)
    build = re.search(r"\(build ([^,)]+)", answer)
    return {
        "JAVA_VERSION": number[1] if number else "",
        "JAVA_RUNTIME_VERSION": build[1] if build else (number[1] if number else ""),
    }
