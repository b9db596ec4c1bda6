"""The Docker engine for tests: its commands, and the images that are built with it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from docker import DockerClient

from flowcore.testing.kafka_image import kafka_image

__all__ = ["PROJECT", "build_images", "docker"]

PROJECT = Path(__file__).parents[2]
BASES = Path(__file__).with_name("bases")
PREFIX = "flowcore-check"  # not the names that compose.yaml gives


def docker(*arguments: str | Path, environment: Mapping[str, str] | None = None, fails: bool = False) -> str:
    """Run a command of Docker; its output, with that of errors if it is meant to fail."""
    done = subprocess.run(
        ["docker", *map(str, arguments)],
        env=os.environ | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if fails else subprocess.PIPE,
        text=True,
        check=False,
    )
    assert bool(done.returncode) is fails, f"docker {arguments}: {done.stdout} {done.stderr}"
    return done.stdout


def build_images() -> dict[str, str]:
    """Build the images of deploy/compose; their names, by the variable or service that names them.

    A base image that the environment names, by the variable of env.example, is used as it is. The others are
    made here, of Debian's packages and of the test broker. All images are kept: the next build is short.
    """
    debian = os.environ.get("DEBIAN_IMAGE") or _debian()
    bases = {"DEBIAN_IMAGE": debian} | {
        variable: os.environ.get(variable) or _base(variable.removesuffix("_IMAGE").lower(), debian)
        for variable in ("PYTHON_IMAGE", "POSTGRES_IMAGE", "KAFKA_IMAGE", "PROMETHEUS_IMAGE")
    }
    flowcore, proxy = f"{PREFIX}", f"{PREFIX}-proxy"
    _build(flowcore, PROJECT, "--file", PROJECT / "deploy/Dockerfile", BASE=bases["PYTHON_IMAGE"])
    _build(proxy, PROJECT / "deploy/proxy", BASE=debian)
    return bases | {"flowcore": flowcore, "proxy": proxy, "registry": _base("registry", debian)}


def _debian() -> str:
    image = f"{PREFIX}-debian"
    if not docker("image", "ls", "--quiet", image):
        subprocess.run([BASES / "debian.sh", image], check=True)
    return image


def _base(name: str, debian: str) -> str:
    image = f"{PREFIX}-{name}"
    arguments = {"KAFKA": kafka_image(DockerClient.from_env())} if name == "kafka" else {}
    _build(image, BASES, "--target", name, DEBIAN=debian, **arguments)
    return image


def _build(image: str, context: Path, *options: str | Path, **arguments: str) -> None:
    given = [f"--build-arg={name}={value}" for name, value in arguments.items()]
    docker("build", "--quiet", "--tag", image, *options, *given, context)
