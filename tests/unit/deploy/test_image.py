"""deploy/Dockerfile and its entry point are linted, copy existing files, and do not run as root."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from flowcore.installation.java import NEWEST, OLDEST

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "deploy/Dockerfile"
TEXT = DOCKERFILE.read_text()


def test_dockerfile_passes_the_linter() -> None:
    """All severities and the shell rules are enabled."""
    done = subprocess.run(["hadolint", DOCKERFILE], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_image_copies_files_that_dockerignore_allows() -> None:
    """Each copied file exists, and .dockerignore allows exactly these files."""
    lines = (ROOT / "deploy/Dockerfile.dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(?:--\S+ )?(.+) \S+$", TEXT, re.MULTILINE)
    names = {name for line in copied for name in line.split()}

    assert "*" in lines
    assert names == allowed
    assert all((ROOT / name).exists() for name in names)


def test_image_has_a_supported_java_and_no_root() -> None:
    """The user is a number, so that Kubernetes can check that it is not 0."""
    (java,) = re.findall(r"openjdk-(\d+)-jre", TEXT)

    assert OLDEST <= int(java) <= NEWEST
    assert re.findall(r"^USER (.+)$", TEXT, re.MULTILINE) == ["10001:10001"]


def test_image_leaves_the_temporary_files_of_spark_to_flowcore() -> None:
    """With SPARK_LOCAL_DIRS they are not in the folder that the next start removes after a kill."""
    assert "SPARK_LOCAL_DIRS" not in TEXT
    assert "TMPDIR" not in TEXT  # not all containers can write there


@pytest.mark.parametrize("name", ["image", "build"])
def test_locks_of_the_image_are_parts_of_the_lock(name: str) -> None:
    """The image has the versions and hashes that were tested; only who needs a package may differ."""
    whole, part = (
        re.findall(r"^\S.*(?:\n    .*)*", re.sub(r" ; [^\\\n]*", " ", path.read_text()), re.MULTILINE)
        for path in (ROOT / "requirements.lock", ROOT / f"deploy/{name}.lock")
    )

    assert set(part) <= set(whole)
    assert all("--hash=sha256:" in each for each in part)


def test_image_has_the_packages_that_flowcore_needs() -> None:
    """Each dependency of flowcore and of its two extras is in the image's lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["dagster"], *extras["containers"]]
    locked = re.findall(r"^(\S+)==", (ROOT / "deploy/image.lock").read_text(), re.MULTILINE)

    assert {re.split(r"[<>=]", each)[0] for each in needed} <= set(locked)


def test_nothing_is_installed_without_a_hash() -> None:
    """In the image and by `deploy/setup` each command that downloads has a lock, and no build is isolated."""
    text = TEXT + (ROOT / "deploy/setup").read_text()
    commands = re.findall(r"pip (?:install|sync)(?:[^\\\n]|\\\n)*", text)
    ours = [each for each in commands if "flowcore-*.whl" in each or "--editable" in each]

    assert len(commands) > len(ours) == 2
    assert all("--require-hashes" in each for each in commands if each not in ours)
    assert all("--no-deps" in each or "--no-build-isolation" in each for each in commands)


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """An environment in which spark-submit and java record their arguments."""
    (tmp_path / "bin").mkdir()
    for name in ("spark-submit", "java"):
        program = tmp_path / "bin" / name
        program.write_text("#!/usr/bin/env python3\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
        program.chmod(0o755)
    return {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SPARK_HOME": str(tmp_path)}


def called(environment: dict[str, str], *arguments: str) -> list[str]:
    entry = ["/bin/bash", ROOT / "deploy/entrypoint.sh", *arguments]
    done = subprocess.run(entry, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def test_entry_point_starts_a_driver(programs: dict[str, str]) -> None:
    """It is a client of the cluster that created its pod; arguments are unchanged."""
    found = called(
        programs | {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.7"},
        "driver",
        "--properties-file",
        "p",
        "main.py",
        "a b",
    )

    assert found == [
        "--deploy-mode", "client", "--conf", "spark.driver.bindAddress=10.0.0.7",
        "--properties-file", "p", "main.py", "a b",
    ]  # fmt: skip


def test_entry_point_starts_an_executor(programs: dict[str, str]) -> None:
    """Spark's numbered options are passed in order, each as one argument."""
    given = {
        **{f"SPARK_JAVA_OPT_{number}": f"-Dn={number} x" for number in range(12)},
        "SPARK_CLASSPATH": "/connector/*",
        "SPARK_EXECUTOR_MEMORY": "1g",
        "SPARK_DRIVER_URL": "spark://driver",
        "SPARK_EXECUTOR_ID": "3",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "pod-3",
    }
    found = called(programs | given, "executor")

    assert found[:12] == [f"-Dn={number} x" for number in range(12)]
    assert found[12:16] == [
        "-Xms1g",
        "-Xmx1g",
        "-cp",
        f"/connector/*:{programs['SPARK_HOME']}/jars/*",
    ]
    assert found[16] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    assert dict(zip(found[17::2], found[18::2], strict=True)) == {
        "--driver-url": "spark://driver", "--executor-id": "3", "--cores": "2", "--app-id": "app",
        "--hostname": "10.0.0.8", "--resourceProfileId": "0", "--podName": "pod-3",
    }  # fmt: skip


def test_entry_point_runs_any_other_command(programs: dict[str, str]) -> None:
    """The command is run unchanged."""
    assert called(programs, "java", "-version") == ["-version"]
