"""deploy/pin_images, asked of a real registry."""

from __future__ import annotations

import io
import secrets
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.images.engine import PROJECT, docker
from tests.waiting import wait_until

NAME = f"flowcore-check-registry-{secrets.token_hex(3)}"
EXAMPLE = PROJECT / "deploy/compose/env.example"
VARIABLES = [line.split("=")[0] for line in EXAMPLE.read_text().splitlines() if "_IMAGE=" in line]


@pytest.fixture(scope="module")
def registry(images: dict[str, str]) -> Iterator[str]:
    """The address of an empty registry, on loopback."""
    docker("run", "--detach", "--rm", "--name", NAME, "--publish=127.0.0.1::5000", images["registry"])
    try:
        address = docker("port", NAME, "5000").strip()
        wait_until(lambda: _answers(address), "the registry answers")
        yield address
    finally:
        docker("rm", "--force", NAME)


@pytest.fixture
def folder(tmp_path: Path, registry: str) -> Path:
    """A folder of compose whose images are all in the registry, as ``base:1``."""
    (tmp_path / "env.example").write_text(EXAMPLE.read_text())
    (tmp_path / ".env").write_text("".join(f"{name}={registry}/base:1\n" for name in VARIABLES))
    return tmp_path


def test_pinned_image_stays_when_its_tag_is_moved(registry: str, folder: Path) -> None:
    """Compose pulls what was there when it was pinned; pinned again, what the tag names now."""
    tag = f"{registry}/base:1"
    first = _push(tag, b"first")
    pinned = _pin(folder)
    second = _push(tag, b"second")

    assert len(set(pinned.values())) == 1
    assert pinned.keys() == set(VARIABLES)
    assert _pulled(pinned["KAFKA_IMAGE"]) == first != second
    assert _pulled(_pin(folder)["KAFKA_IMAGE"]) == second


def test_image_that_the_registry_does_not_have_is_not_pinned(registry: str, folder: Path) -> None:
    """The file stays as it is, also for the images that were found."""
    _push(f"{registry}/base:1", b"first")
    before = (
        (folder / ".env")
        .read_text()
        .replace(f"{VARIABLES[-1]}={registry}/base", f"{VARIABLES[-1]}={registry}/none")
    )
    (folder / ".env").write_text(before)

    done = subprocess.run(
        [PROJECT / "deploy/pin_images", folder], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert f"the registry of {registry}/none:1 does not answer, or does not have it" in done.stderr
    assert (folder / ".env").read_text() == before


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/v2/", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _push(tag: str, content: bytes) -> str:
    """Push an image with one file; its id."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo("content")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    subprocess.run(
        ["docker", "import", "-", tag], input=packed.getvalue(), check=True, stdout=subprocess.DEVNULL
    )
    docker("push", "--quiet", tag)
    image = docker("image", "inspect", "--format={{.Id}}", tag).strip()
    docker("image", "rm", "--force", image)
    return image


def _pin(folder: Path) -> dict[str, str]:
    subprocess.run([PROJECT / "deploy/pin_images", folder], check=True, stdout=subprocess.DEVNULL)
    return dict(line.split("=", 1) for line in (folder / ".env").read_text().splitlines())


def _pulled(image: str) -> str:
    docker("pull", "--quiet", image)
    return docker("image", "inspect", "--format={{.Id}}", image).strip()
