"""PyFlink in an environment of its own below flowcore's cache folder, and Flink's Kafka connector."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from flowcore.errors import InstallationError
from flowcore.installation.cache import cache_folder, lock_folder
from flowcore.installation.jars import pyspark_jars
from flowcore.installation.java import find_java

__all__ = ["VERSION", "connector", "interpreter"]

VERSION = "2.2.0"
_PYTHON = "3.11"
_IVY_XML = Path(__file__).with_name("ivy.xml")
_DIGEST = hashlib.sha256(_IVY_XML.read_bytes()).hexdigest()[:16]


def interpreter() -> Path:
    """The Python that has PyFlink; it is installed first if it is missing (700 MB, once).

    Raises:
        InstallationError: There is no uv, or PyFlink cannot be installed.
    """
    folder = cache_folder() / "pyflink" / f"{VERSION}-{_DIGEST}"
    with lock_folder(folder.parent) as lock:
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            click.echo(f"installing PyFlink {VERSION} into {folder}, once", err=True)
            uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
            if uv is None:
                msg = "there is no uv to install PyFlink with: no rival can run; run: pip install uv"
                raise InstallationError(msg)
            _run([uv, "venv", "--quiet", "--python", _PYTHON, folder], lock)
            python = folder / "bin" / "python"
            _run([uv, "pip", "install", "--quiet", "--python", python, f"apache-flink=={VERSION}"], lock)
            _run(
                [find_java().executable, "-jar", next(pyspark_jars().glob("ivy-*.jar")), "-warn",
                 "-ivy", _IVY_XML, "-confs", "connector", "-cache", folder / "ivy-cache",
                 "-retrieve", f"{folder}/jars/[artifact]-[revision].[ext]"],
                lock,
            )  # fmt: skip
            shutil.rmtree(folder / "ivy-cache")
            (folder / "complete").touch()
    return folder / "bin" / "python"


def connector() -> Path:
    """The jar of the connector, which was installed with PyFlink."""
    (jar,) = (interpreter().parents[1] / "jars").glob("*.jar")
    return jar


def _run(command: list[Any], lock: int) -> None:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, pass_fds=(lock,)
    )
    if done.returncode != 0:
        msg = f"PyFlink {VERSION} cannot be installed: no rival can run: {done.stdout[-2000:]}"
        raise InstallationError(msg)
