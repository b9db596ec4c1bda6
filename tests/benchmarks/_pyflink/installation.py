"""PyFlink in an environment of its own below flowcore's cache folder, and Flink's Kafka connector."""

from __future__ import annotations

import shutil
from pathlib import Path

from flowcore.installation.jars import pyspark_jars
from flowcore.installation.java import find_java
from tests.benchmarks._peers.environments import install_rival, run_installer

__all__ = ["VERSION", "connector", "interpreter"]

VERSION = "2.2.0"
_IVY_XML = Path(__file__).with_name("ivy.xml")


def interpreter() -> Path:
    """The Python that has PyFlink; it is installed first if it is missing (700 MB, once).

    Raises:
        InstallationError: There is no uv, or PyFlink cannot be installed.
    """
    return install_rival("pyflink", [f"apache-flink=={VERSION}"], _install_connector, _IVY_XML.read_bytes())


def connector() -> Path:
    """The jar of the connector, which was installed with PyFlink."""
    (jar,) = (interpreter().parents[1] / "jars").glob("*.jar")
    return jar


def _install_connector(folder: Path, lock: int) -> None:
    cache = folder / "ivy-cache"
    run_installer(
        "Flink's Kafka connector",
        [find_java().executable, "-jar", next(pyspark_jars().glob("ivy-*.jar")), "-warn",
         "-ivy", _IVY_XML, "-confs", "connector", "-cache", cache,
         "-retrieve", f"{folder}/jars/[artifact]-[revision].[ext]"],
        lock,
    )  # fmt: skip
    shutil.rmtree(cache)
