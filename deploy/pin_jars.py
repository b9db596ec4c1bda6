"""Write `flowcore/installation/jars.sha256` anew: run it after a change of `ivy.xml`.

The jars are downloaded into a folder that is thrown away. Ivy compares them with the checksums that lie
beside them in the repository.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from pathlib import Path

from flowcore.installation import jars
from flowcore.installation.java import find_java

_FOLDER = Path(jars.__file__).parent


def main() -> None:
    """Download all jars and write a line for each: SHA-256, configuration and name, coordinates."""
    ivy = next(jars.pyspark_jars().glob("ivy-*.jar"))
    with tempfile.TemporaryDirectory() as folder:
        pattern = f"{folder}/whole/[conf]/[organisation]/[artifact]/[revision]/[artifact]-[revision].[ext]"
        subprocess.run(  # noqa: S603 - both programs are found by flowcore
            [find_java().executable, "-jar", ivy, "-warn", "-ivy", _FOLDER / "ivy.xml", "-confs", "connector",
             "broker", "-cache", f"{folder}/cache", "-retrieve", pattern],
            check=True,
        )  # fmt: skip
        whole = Path(folder, "whole")
        lines = sorted((_line(jar, whole) for jar in whole.rglob("*.jar")), key=lambda line: line.split()[1])
    (_FOLDER / "jars.sha256").write_text("".join(f"{line}\n" for line in lines))


def _line(jar: Path, folder: Path) -> str:
    configuration, group, artifact, version, name = jar.relative_to(folder).parts
    digest = hashlib.sha256(jar.read_bytes()).hexdigest()
    return f"{digest}  {configuration}/{name}  {group}:{artifact}:{version}"


if __name__ == "__main__":
    main()
