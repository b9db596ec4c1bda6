"""deploy/pin_images writes the digest of each image, and nothing that a registry could make of it."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "deploy/compose/env.example"
DIGEST = f"sha256:{'0123456789abcdef' * 4}"
SHIPPED = dict(line.split("=", 1) for line in EXAMPLE.read_text().splitlines() if "_IMAGE=" in line)
IMAGES = {name: image.partition("@")[0] for name, image in SHIPPED.items()}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of compose, and a `docker` that prints the file `answer`."""
    (tmp_path / "bin").mkdir()
    docker = tmp_path / "bin/docker"
    docker.write_text(f'#!/bin/bash\necho "$*" >>{tmp_path}/asked\ncat {tmp_path}/answer\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    answer(tmp_path, DIGEST)
    shutil.copy(EXAMPLE, tmp_path)
    (tmp_path / ".env").write_text(
        "POSTGRES_PASSWORD=s3cret&|\\\nKAFKA_IMAGE=own/kafka:1@sha256:old\nHISTORY=/h\n"
    )
    return tmp_path


def answer(folder: Path, digest: str) -> None:
    """What buildx prints, and a line that is none of it."""
    text = (
        f"Name:      own/kafka:1\nMediaType: application/json\nDigest:    {digest}\nPOSTGRES_PASSWORD=evil\n"
    )
    (folder / "answer").write_text(text)


def pin(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / "deploy/pin_images", folder], capture_output=True, text=True, check=False)


def test_images_are_pinned_as_they_ship() -> None:
    """Those of compose, and the bases of our own images, which Kubernetes gets too."""
    bases = [
        re.findall(r"^ARG BASE=(.*)$", (ROOT / "deploy" / file).read_text(), re.MULTILINE)
        for file in ("Dockerfile", "proxy/Dockerfile")
    ]

    assert bases == [[SHIPPED["PYTHON_IMAGE"]], [SHIPPED["DEBIAN_IMAGE"]]]
    assert all(re.fullmatch(r"[a-z/]+:[a-z0-9.-]+@sha256:[0-9a-f]{64}", image) for image in SHIPPED.values())


def test_each_image_is_pinned_by_its_digest(folder: Path) -> None:
    """The rest of the file stays as it is; an image that the file names keeps its name."""
    done = pin(folder)
    images = IMAGES | {"KAFKA_IMAGE": "own/kafka:1"}

    assert (done.returncode, done.stderr) == (0, "")
    pinned = [f"{name}={image}@{DIGEST}" for name, image in images.items()]
    assert (folder / ".env").read_text().splitlines() == [
        "POSTGRES_PASSWORD=s3cret&|\\",
        "HISTORY=/h",
        *pinned,
    ]
    assert stat.S_IMODE((folder / ".env").stat().st_mode) == 0o600
    asked = (folder / "asked").read_text().splitlines()
    assert asked == [f"buildx imagetools inspect {image}" for image in images.values()]


def test_pinned_images_are_pinned_again(folder: Path) -> None:
    """After an update of the images; no line is there twice."""
    pin(folder)
    answer(folder, f"sha256:{'f' * 64}")
    assert pin(folder).returncode == 0

    text = (folder / ".env").read_text()
    assert DIGEST not in text
    assert text.count("_IMAGE=") == text.count("f" * 64) == len(IMAGES)


@pytest.mark.parametrize(
    "digest",
    [
        "",
        "latest",
        DIGEST[:-1],
        f"{DIGEST}0",
        DIGEST.upper(),
        f"x{DIGEST}",
    ],
    ids=["nothing", "tag", "short", "long", "letters", "before"],
)
def test_other_answer_is_refused(folder: Path, digest: str) -> None:
    """A registry cannot write settings, and nothing is written by half."""
    before = (folder / ".env").read_text()
    answer(folder, digest)
    done = pin(folder)

    assert done.returncode == 1
    assert "has no digest of SHA-256" in done.stderr
    assert (folder / ".env").read_text() == before
    assert not list(folder.glob(".env.*"))


def test_registry_that_does_not_answer_changes_nothing(folder: Path) -> None:
    """The error names the image."""
    (folder / "bin/docker").write_text("#!/bin/bash\nexit 1\n")
    before = (folder / ".env").read_text()
    done = pin(folder)

    assert (done.returncode, (folder / ".env").read_text()) == (1, before)
    assert IMAGES["PYTHON_IMAGE"] in done.stderr


def test_passwords_must_be_chosen_first(folder: Path) -> None:
    """It writes no file that lacks them."""
    (folder / ".env").unlink()
    done = pin(folder)

    assert done.returncode == 1
    assert "copy env.example to .env" in done.stderr
