"""Checks of `flowcore doctor`: whether this machine has what flowcore needs.

Each check returns one row; it changes nothing and never raises.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from flowcore.errors import InstallationError
from flowcore.installation.archive import archive_file
from flowcore.installation.cache import cache_folder
from flowcore.installation.jars import jars, jars_folder
from flowcore.installation.java import find_java, install_command

__all__ = ["CHECKS", "Check", "Status", "run_checks"]

Status = Literal["ok", "warn", "missing"]

_GIB = 1 << 30
_NEEDED_DISK_BYTES, _WANTED_DISK_BYTES = 1 * _GIB, 5 * _GIB
_WANTED_CORES, _WANTED_MEMORY_BYTES = 2, 4 * _GIB
_OLDEST_PYTHON = (3, 11)
_SET_UP = "flowcore setup"


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check.

    Args:
        status: `missing`: flowcore does not work; `warn`: it is slower, or works without.
        found: What was found, in a few words.
        mend: The command or act that makes the status `ok`; empty if it is.
    """

    name: str
    status: Status
    found: str
    purpose: str
    mend: str = ""


def run_checks() -> list[Check]:
    """Run all checks, in the order in which requirements have to be met."""
    return [check() for check in CHECKS]


def _python() -> Check:
    ok = sys.version_info >= _OLDEST_PYTHON
    found = f"{platform.python_version()} at {sys.executable}"
    mend = "" if ok else "install Python 3.11 or newer and make the environment with it"
    return Check("Python", "ok" if ok else "missing", found, "runs flowcore and its workers", mend)


def _java() -> Check:
    purpose = "runs Spark and the embedded broker"
    try:
        java = find_java()
    except InstallationError as error:
        return Check("Java", "missing", str(error).partition(":")[0], purpose, install_command())
    return Check("Java", "ok", f"{java.build} at {java.home}", purpose)


def _pyspark() -> Check:
    purpose = "the engine"
    try:
        return Check("PySpark", "ok", version("pyspark"), purpose)
    except PackageNotFoundError:
        return Check("PySpark", "missing", "not in this Python", purpose, "pip install pyspark==4.3.0")


def _connector() -> Check:
    purpose = "lets Spark read and write Kafka"
    if not jars_folder().is_dir():
        return Check("Connector jars", "missing", f"not in {jars_folder()}", purpose, _SET_UP)
    try:
        found = ", ".join(" ".join(_artifact(jar)) for jar in jars("connector"))
    except InstallationError as error:
        return _unusable("Connector jars", error, purpose)
    return Check("Connector jars", "ok", found, purpose)


def _broker() -> Check:
    purpose = "the embedded Kafka broker"
    if not jars_folder().is_dir():
        return Check("Broker jars", "missing", f"not in {jars_folder()}", purpose, _SET_UP)
    try:
        artifacts = dict(map(_artifact, jars("broker")))
    except InstallationError as error:
        return _unusable("Broker jars", error, purpose)
    found = f"kafka {artifacts.get('kafka', '?')} and {len(artifacts) - 1} more"
    return Check("Broker jars", "ok", found, purpose)


def _unusable(name: str, error: InstallationError, purpose: str) -> Check:
    found, _, mend = str(error).partition("; ")
    return Check(name, "missing", found, purpose, mend)


def _archive() -> Check:
    purpose = "shortens Spark's start by a third"
    try:
        find_java()
        archive = archive_file() if jars_folder().is_dir() else None
    except InstallationError:
        archive = None
    if archive is None or not archive.is_file():
        return Check("Class archive", "warn", "none for this Java and class path", purpose, _SET_UP)
    return Check("Class archive", "ok", f"{archive} ({archive.stat().st_size >> 20} MiB)", purpose)


def _docker() -> Check:
    purpose = "starts brokers for the tests; flows do not need it"
    mend = "start the Docker engine (deploy/check does, as root on Debian)"
    try:
        answer = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"],  # noqa: S607 -- the user's docker
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return Check("Docker", "warn", "no docker command that answers", purpose, mend)
    if answer.returncode != 0:
        return Check("Docker", "warn", "no engine answers", purpose, mend)
    return Check("Docker", "ok", f"engine {answer.stdout.strip()}", purpose)


def _disk() -> Check:
    purpose = "jars, checkpoints, bounded results and Spark's spill"
    cache = next(place for place in (cache_folder(), *cache_folder().parents) if place.exists())
    places = {str(cache), tempfile.gettempdir(), str(Path.cwd())}
    place = min(places, key=lambda place: shutil.disk_usage(place).free)
    free = shutil.disk_usage(place).free
    found = f"{free / _GIB:.1f} GiB free at {place}"
    if free >= _WANTED_DISK_BYTES:
        return Check("Disk", "ok", found, purpose)
    mend = "free some space, or point FLOWCORE_CACHE and TMPDIR to a disk that has it"
    return Check("Disk", "warn" if free >= _NEEDED_DISK_BYTES else "missing", found, purpose, mend)


def _machine() -> Check:
    purpose = "a live query holds a core for each Kafka partition"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = f"{cores} cores, {memory / _GIB:.0f} GiB of memory"
    if cores >= _WANTED_CORES and memory >= _WANTED_MEMORY_BYTES:
        return Check("Machine", "ok", found, purpose)
    mend = f"use a machine with {_WANTED_CORES} cores and {_WANTED_MEMORY_BYTES // _GIB} GiB or more"
    return Check("Machine", "warn", found, purpose, mend)


CHECKS: tuple[Callable[[], Check], ...] = (
    _python, _java, _pyspark, _connector, _broker, _archive, _docker, _disk, _machine,
)  # fmt: skip


def _artifact(jar: Path) -> tuple[str, str]:
    """`kafka` and `4.2.0` of `kafka_2.13-4.2.0.jar`."""
    match = re.fullmatch(r"(.+?)(?:_2\.13)?-(\d+(?:\.\d+)+.*)\.jar", jar.name)
    return (match[1], match[2]) if match else (jar.stem, "?")
