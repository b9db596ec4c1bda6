"""How does Spark's JVM start in two thirds of the time?

Most of a cold start is loading some 20,000 classes. A *class archive* (Java's class-data sharing)
holds them ready for use. It fits one JVM build and one class path exactly, so its file is named
after both; where none fits, Spark starts as it always did. It is made by a Spark job that does
typical work once and writes the archive when its JVM ends.

The connector's jars are on the JVM's own class path (`spark.driver.extraClassPath`): classes that
`spark.jars` brings cannot be archived.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from flowcore.errors import InstallationError
from flowcore.installation.cache import cache_folder, locked, remove_partial
from flowcore.installation.jars import jars, pyspark_jars
from flowcore.installation.java import find_java

__all__ = ["archive_file", "compiler_options", "driver_class_path", "driver_options", "make_archive"]

_KEEP = 3
"""Archives of other environments to leave in the cache; each has about 200 MB."""


def driver_class_path() -> str:
    """Return what `spark.driver.extraClassPath` has to be: the connector's jars."""
    return os.pathsep.join(map(str, jars("connector")))


def driver_options(*, short_lived: bool = False, record_to: Path | None = None) -> list[str]:
    """Return the JVM flags that make Spark's driver start sooner.

    Join them with spaces into `spark.driver.extraJavaOptions`.

    Args:
        short_lived: Compile quickly instead of well. A test of a few seconds is done sooner; a stream
            would be slower all its life.
        record_to: Write an archive there when the JVM ends, instead of using one.
    """
    if record_to is not None:
        return [_quoted(f"-XX:ArchiveClassesAtExit={record_to}"), "-Xlog:cds*=off"]
    options = []
    archive = archive_file()
    if archive.is_file():
        # An archive that does not fit after all is to be ignored without a word.
        options += [_quoted(f"-XX:SharedArchiveFile={archive}"), "-Xshare:auto", "-Xlog:cds*=off"]
    return options + compiler_options(short_lived)


def compiler_options(short_lived: bool) -> list[str]:
    """Return the JVM flags of one that compiles quickly instead of well, if it is short-lived."""
    # With one compiler Java reserves 48 MiB for code, which the JVM of a whole test run fills.
    return ["-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m"] if short_lived else []


def archive_file() -> Path:
    """Return the file that holds, or will hold, the archive for this Java and this class path."""
    java = find_java()
    digest = hashlib.sha256(f"{java.home} {java.build}".encode())
    # `iterdir` gives PySpark's jars in the order in which the JVM expands their wildcard.
    for jar in (*jars("connector"), *pyspark_jars().iterdir()):
        entry = jar.stat()
        digest.update(f"\n{jar} {entry.st_size} {entry.st_mtime_ns}".encode())
    return cache_folder() / "archives" / f"spark-{digest.hexdigest()[:16]}.jsa"


def make_archive(work: Sequence[str]) -> Path:
    """Make the archive if it is not there.

    Args:
        work: The command that starts Spark with `driver_options(record_to=FILE)` and does typical
            work; FILE is appended as its last argument.

    Raises:
        InstallationError: The command failed or left no archive. Spark runs without one.
    """
    archive = archive_file()
    if archive.is_file():
        return archive
    with locked(archive.parent) as lock:
        if not archive.is_file():
            remove_partial(archive.parent)
            with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".partial-") as partial:
                made = Path(partial) / archive.name
                _run([*work, str(made)], made, lock)
                made.rename(archive)
            _prune(archive)
    return archive


def _run(command: Sequence[str], made: Path, lock: int) -> None:
    # The JVM outlives the command while it writes the archive. It holds the output's pipe, so that
    # `run`, which reads to the pipe's end, returns when the archive is there.
    done = subprocess.run(  # noqa: S603 -- the command is this package's own
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        text=True, check=False, pass_fds=(lock,),
    )  # fmt: skip
    if done.returncode != 0 or not made.is_file():
        lines = done.stdout.splitlines() or ["nothing"]
        reason = next(
            (line for line in reversed(lines) if re.match(r"[\w.]*(Error|Exception)\b", line)), lines[-1]
        )
        message = (
            f"the class archive could not be made (exit code {done.returncode}, {reason}): "
            f"Spark starts without it, some seconds slower; see: {shlex.join(command)}"
        )
        raise InstallationError(message)


def _prune(newest: Path) -> None:
    others = sorted(newest.parent.glob("spark-*.jsa"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in others[_KEEP:]:
        file.unlink(missing_ok=True)


def _quoted(option: str) -> str:
    """Quote a flag for Spark's launcher, which splits them at spaces."""
    return f'"{option}"' if " " in option else option
