"""The jars that PySpark lacks: its Kafka connector, its Avro functions, and the embedded broker.

The Ivy inside PySpark resolves them once, from `ivy.xml` beside this file, into a folder named after that
file's digest. A folder that exists is complete: it is created by one rename, after its jars were compared
with their pinned checksums. They are compared again in each process that uses them.
"""

import hashlib
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from rich.console import Console

from flowcore.errors import InstallationError
from flowcore.installation.cache import cache_folder, lock_folder, remove_partial, require_own
from flowcore.installation.checksums import find_unpinned
from flowcore.installation.java import find_java

__all__ = ["Configuration", "jars", "jars_folder", "pyspark_jars"]

Configuration = Literal["connector", "broker"]

_IVY_XML = Path(__file__).with_name("ivy.xml")
_DIGEST = hashlib.sha256(_IVY_XML.read_bytes()).hexdigest()[:16]


def jars(configuration: Configuration) -> tuple[Path, ...]:
    """The jars of one configuration; all are downloaded first if they are missing.

    Args:
        configuration: `connector` for Spark's Kafka source and sink and its Avro functions, `broker` for
            a Kafka broker. They contain different Kafka clients: never put both on one class path.

    Raises:
        InstallationError: The jars are missing and cannot be downloaded, or there is no Java to do it; a jar
            is not the pinned one; others may write to a folder of the cache.
    """
    folder = jars_folder()
    if not folder.is_dir():
        with lock_folder(folder.parent) as lock:
            if not folder.is_dir():  # another process may have downloaded them meanwhile
                _download(folder, lock)
    found = tuple(sorted((folder / configuration).glob("*.jar")))
    require_own(cache_folder(), folder.parent, folder, folder / configuration, *found)
    if problem := find_unpinned(folder, configuration):
        message = (
            f"jar {problem}: the jars in {folder} are not those that flowcore was tested with, and Spark "
            "would run their code with your passwords; find out who changed them, then delete that folder "
            "and run: flowcore setup"
        )
        raise InstallationError(message)
    return found


def jars_folder() -> Path:
    """The folder with one sub-folder of jars per configuration; it need not exist."""
    return cache_folder() / "jars" / _DIGEST


def pyspark_jars() -> Path:
    """PySpark's own jars folder, without importing PySpark.

    Raises:
        InstallationError: PySpark is not installed in this Python.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        message = (
            "PySpark is not installed in this Python: Spark cannot start; run: pip install pyspark==4.3.0"
        )
        raise InstallationError(message)
    return Path(spec.origin).parent / "jars"


def _download(folder: Path, lock: int) -> None:
    remove_partial(folder.parent)
    java = find_java().executable
    ivy = next(pyspark_jars().glob("ivy-*.jar"))
    # Ivy's own cache survives a killed download, which the next one then resumes.
    ivy_cache = folder.parent / "ivy-cache"
    console = Console(stderr=True)
    with (
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=".partial-") as partial,
        console.status(f"downloading the Kafka jars (53 MB, once) into {folder}"),
    ):
        pattern = f"{partial}/whole/[conf]/[artifact]-[revision].[ext]"
        done = subprocess.run(  # noqa: S603 -- this package found both programs
            [java, "-jar", ivy, "-warn", "-ivy", _IVY_XML, "-confs", "connector", "broker",
             "-cache", ivy_cache, "-retrieve", pattern],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, pass_fds=(lock,),
        )  # fmt: skip
        if done.returncode != 0:
            lines = [line.strip(" :\t") for line in done.stdout.splitlines() if line.strip(" :\t")]
            message = (
                f"the Kafka jars are not in {folder} and could not be downloaded (Ivy says: "
                f"{' | '.join(lines[:3])}): Spark cannot reach Kafka without them; connect this machine to "
                "the network and run: flowcore setup, or copy the folder from a machine that has it"
            )
            raise InstallationError(message)
        whole = Path(partial) / "whole"
        for path in (whole, *whole.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)  # Java has obeyed the umask
        for configuration in get_args(Configuration):
            if problem := find_unpinned(whole, configuration):
                message = (
                    f"jar {problem}: what was downloaded is not what flowcore was tested with, and is thrown "
                    "away; check the repository or mirror that this machine uses, then run: flowcore setup"
                )
                raise InstallationError(message)
        whole.rename(folder)
    shutil.rmtree(ivy_cache, ignore_errors=True)
