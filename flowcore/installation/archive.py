"""JVM flags for a fast start of Spark: a class archive, and what Java compiles when.

A cold start loads some 20,000 classes. A class archive (Java's class-data sharing) holds them in loaded
form, with which Spark starts in two thirds of the time. It fits one JVM build and one class path, so its file
is named after both; without one that fits, Spark starts as usual. A Spark job that does typical work writes
the archive when its JVM ends.

The connector's jars are on the JVM's class path (`spark.driver.extraClassPath`), since classes of
`spark.jars` cannot be archived.
"""

import contextlib
import hashlib
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from flowcore.errors import InstallationError
from flowcore.installation.cache import cache_folder, lock_folder, remove_partial, require_own
from flowcore.installation.jars import jars, pyspark_jars
from flowcore.installation.java import find_java

__all__ = ["archive_file", "compiler_options", "driver_class_path", "driver_options", "make_archive"]

_LATE = {"InvocationThreshold": 50_000, "MinInvocationThreshold": 6_000, "CompileThreshold": 150_000,
         "BackEdgeThreshold": 400_000}  # fmt: skip
"""Ten times Java's own: the planning of a query calls many methods some thousand times, and not again; what
records pass is called millions of times."""
_DIRECTIVES = Path(__file__).with_name("compiler_directives.json")
"""Java's second compiler leaves these methods to the first: it spent a third of its time on code that only
starts a query. Methods that call them may still inline them."""
_WITH_DIRECTIVES = "-XX:+UnlockDiagnosticVMOptions", "-XX:-DisplayVMOutput"
"""Else Java prints how many directives it has read, into what a command prints. Without this output it prints
no stacks at a SIGQUIT either: use ``jcmd PID Thread.print``."""
_METASPACE = "-XX:MetaspaceSize=512m"
"""A start has 200 MB of classes, and Java collects garbage at 21 MB and each time that doubles."""
_KEEP = 3
"""Archives that stay in the cache, those that were used last; each has about 200 MB."""


def driver_class_path() -> str:
    """The value of `spark.driver.extraClassPath`: the connector's jars."""
    return os.pathsep.join(map(str, jars("connector")))


def driver_options(*, short_lived: bool = False, record_to: Path | None = None) -> list[str]:
    """JVM flags that shorten the start of Spark's driver.

    Join them with spaces into `spark.driver.extraJavaOptions`.

    Args:
        short_lived: Compile quickly instead of well, for a test of a few seconds; a stream would be slower.
        record_to: Write an archive to this file when the JVM ends, instead of using one.
    """
    if record_to is not None:
        return [_quoted(f"-XX:ArchiveClassesAtExit={record_to}"), "-Xlog:cds*=off"]
    options = []
    archive = archive_file()
    if archive.is_file():
        require_own(archive.parent, archive)  # the JVM maps it as its own classes
        with contextlib.suppress(OSError):
            os.utime(archive)  # of several environments, those in use keep their archives
        # An archive that does not fit after all is ignored silently.
        options += [_quoted(f"-XX:SharedArchiveFile={archive}"), "-Xshare:auto", "-Xlog:cds*=off"]
    if not short_lived:
        options += [*_WITH_DIRECTIVES, _quoted(f"-XX:CompilerDirectivesFile={_DIRECTIVES}")]
    return options + compiler_options(short_lived)


def compiler_options(short_lived: bool) -> list[str]:
    """JVM flags to compile well only what is hot; a short-lived JVM compiles quickly instead of well."""
    if short_lived:
        # With one compiler Java reserves 48 MiB for code; the JVM of a whole test run needs more.
        return ["-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m"]
    return [_METASPACE, *(f"-XX:Tier4{name}={value}" for name, value in _LATE.items())]


def archive_file() -> Path:
    """The file of the archive for this Java and this class path; it need not exist."""
    java = find_java()
    digest = hashlib.sha256(f"{java.home} {java.build}".encode())
    # `iterdir` lists PySpark's jars in the order in which the JVM expands their wildcard.
    for jar in (*jars("connector"), *pyspark_jars().iterdir()):
        entry = jar.stat()
        digest.update(f"\n{jar} {entry.st_size} {entry.st_mtime_ns}".encode())
    return cache_folder() / "archives" / f"spark-{digest.hexdigest()[:16]}.jsa"


def make_archive(work: Sequence[str]) -> Path:
    """Make the archive if it does not exist.

    Args:
        work: The command that starts Spark with `driver_options(record_to=FILE)` and does typical
            work; FILE is appended as its last argument.

    Raises:
        InstallationError: The command failed or left no archive. Spark runs without one.
    """
    archive = archive_file()
    if archive.is_file():
        return archive
    with lock_folder(archive.parent) as lock:
        if not archive.is_file():
            remove_partial(archive.parent)
            with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".partial-") as partial:
                made = Path(partial) / archive.name
                _run([*work, str(made)], made, lock)
                made.chmod(0o644)  # Java has obeyed the umask; other users of the cache may start Spark
                made.rename(archive)
            others = sorted(archive.parent.glob("spark-*.jsa"), key=lambda file: file.stat().st_mtime)
            for file in others[:-_KEEP]:
                file.unlink(missing_ok=True)
    return archive


def _run(command: Sequence[str], made: Path, lock: int) -> None:
    # The JVM outlives the command while it writes the archive. It holds the pipe of the output, so `run`
    # returns when the archive is written.
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


def _quoted(option: str) -> str:
    """Quote a flag for Spark's launcher, which splits flags at spaces."""
    return f'"{option}"' if " " in option else option
