"""The images of deploy/Dockerfile and deploy/proxy/Dockerfile, built and run."""

from __future__ import annotations

import json
import subprocess
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from tests.images.engine import PROJECT, docker

# A container may do nothing, and reaches nothing; Java asks for the address of its host's name.
LOCKED = (
    "run", "--rm", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=none",
    "--hostname=localhost",
)  # fmt: skip
FOLDERS = ("--tmpfs=/tmp", "--tmpfs=/home/flowcore:uid=10001,gid=10001")
JARS = "/opt/flowcore/connector/"


def test_image_is_complete_on_a_read_only_root(images: dict[str, str]) -> None:
    """`flowcore doctor` finds nothing missing: Java, jars with pinned hashes, Spark's class archive."""
    found = docker(*LOCKED, *FOLDERS, images["flowcore"], "flowcore", "doctor", "--json")
    states = {check["name"]: check["status"] for check in json.loads(found)}

    assert {name for name, state in states.items() if state == "ok"} >= {
        "Python", "Java", "PySpark", "Connector jars", "Broker jars", "Class archive"
    }, found  # fmt: skip


def test_image_refuses_a_jar_that_was_changed(images: dict[str, str]) -> None:
    """One byte more in one jar: doctor fails, and names the jar and its hash."""
    change = f"for jar in {JARS}kafka-clients-*.jar; do printf x >>$jar; done; flowcore doctor --json"
    found = docker("run", "--rm", "--user=0", images["flowcore"], "bash", "-c", change, fails=True)

    assert "connector/kafka-clients-" in found
    assert "SHA-256" in found


def test_image_lets_its_user_write_data_only(images: dict[str, str]) -> None:
    """Programs, jars and flows belong to root: a run cannot change what the next one executes."""
    script = "id -u; find / -xdev -writable -not -type l -not -path '/proc/*' -not -path '/sys/*'"
    user, *writable = docker(
        "run", "--rm", "--network=none", images["flowcore"], "bash", "-c", f"{script} 2>/dev/null || true"
    ).splitlines()

    assert user == "10001"
    outside = [path for path in writable if not path.startswith(("/home/flowcore", "/dev/"))]
    assert set(outside) == {
        "/data", "/state", "/scratch", "/dagster", "/tmp", "/var/tmp", "/run/lock",  # noqa: S108 - in the container
    }  # fmt: skip


def test_no_program_of_flowcore_becomes_root(images: dict[str, str]) -> None:
    """Only Debian's own programs have set-uid, which no-new-privileges makes useless."""
    found = docker(
        *LOCKED,
        images["flowcore"],
        "find",
        "/opt",
        "/data",
        "/state",
        "/scratch",
        "/dagster",
        "-perm",
        "/6000",
    )

    assert not found


@pytest.mark.parametrize(
    ("name", "last"), [("flowcore", "/opt/flowcore/connector"), ("proxy", "/opt/proxy/start.sh")]
)
def test_no_layer_has_a_secret(images: dict[str, str], name: str, last: str) -> None:
    """No layer has a private key, a login or a cache, also if a later layer removed it."""
    found: dict[str, bool] = {}
    with (
        subprocess.Popen(["docker", "save", images[name]], stdout=subprocess.PIPE) as process,
        tarfile.open(fileobj=process.stdout, mode="r|") as image,
    ):
        for part in image:
            content = image.extractfile(part) if part.isfile() else None
            if content is not None and part.name.endswith(("layer.tar", *"0123456789abcdef")):
                found |= _secrets(content)
    assert process.returncode == 0
    history = docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", images[name])

    assert last in found
    assert [path for path, is_secret in found.items() if is_secret] == []
    assert not any(word in history.lower() for word in ("password", "token", "secret"))


def _secrets(layer: IO[bytes]) -> dict[str, bool]:
    """Whether a file may be one, by path; empty if this is a description and not a layer."""
    found = {}
    with suppress(tarfile.ReadError), tarfile.open(fileobj=layer, mode="r|") as opened:
        for entry in opened:
            path = Path("/", entry.name)
            is_key = entry.isfile() and path.suffix in (".pem", ".key")
            content = opened.extractfile(entry) if is_key else None
            found[str(path)] = (
                path.name in (".env", ".netrc", ".git", ".pypirc", "pip.conf", "id_rsa", ".docker")
                or path.parts[1:3] == ("root", ".cache")
                or (content is not None and b"PRIVATE KEY" in content.read())
            )
    return found


def test_image_has_the_files_of_the_checkout_and_no_others(images: dict[str, str]) -> None:
    """The project's files in it are those that git knows or would add."""
    known = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "pipelines"],
        cwd=PROJECT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    found = docker(
        *LOCKED, "--workdir=/opt/flowcore/project", images["flowcore"], "find", "pipelines", "-type", "f"
    ).split()

    assert {each for each in found if "__pycache__" not in each} == set(known)


def test_image_loads_the_definitions(images: dict[str, str]) -> None:
    """Dagster finds the jobs without a network and on a read-only root."""
    script = (
        "import json; from pipelines.definitions import defs; "
        "print(json.dumps([job.name for job in defs.resolve_all_job_defs()]))"
    )
    found = docker(*LOCKED, *FOLDERS, images["flowcore"], "python", "-W", "ignore", "-c", script)

    assert {"auctions_history", "auctions_live", "auctions_slice"} <= set(json.loads(found.splitlines()[-1]))


def test_proxy_does_not_start_with_a_short_password(images: dict[str, str]) -> None:
    """It says why, as a user that is not root, on a read-only root."""
    found = docker(*LOCKED, "--tmpfs=/tmp", "--env=PROXY_PASSWORD=short", images["proxy"], fails=True)

    assert found == "proxy: PROXY_PASSWORD has fewer than 12 characters: choose a longer one\n"
    assert docker(*LOCKED, images["proxy"], "id", "-u") == "10002\n"
