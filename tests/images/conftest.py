"""The images, built once for all tests here."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.images.engine import build_images


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests here."""
    for item in items:
        if "tests/images" in item.path.as_posix():
            item.add_marker(pytest.mark.images)


@pytest.fixture(scope="session")
def images() -> dict[str, str]:
    """The names of the images, by the variable or service that names them."""
    missing = [name for name, command in NEEDED.items() if not _succeeds(command)]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"not here: {', '.join(missing)}; deploy/check images installs them as root on Debian")
    assert not missing
    return build_images()


NEEDED = {
    "a Docker engine": ["docker", "info"],
    "docker compose": ["docker", "compose", "version"],
    "docker buildx": ["docker", "buildx", "version"],
}


def _succeeds(command: list[str]) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
