"""deploy/proxy/Dockerfile is lint-free, and contains what starts the proxy."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

DEPLOY = Path(__file__).parents[3] / "deploy"
TEXT = (DEPLOY / "proxy/Dockerfile").read_text()


def test_dockerfile_passes_the_linter() -> None:
    """All severities and the shell rules are enabled."""
    done = subprocess.run(
        ["hadolint", DEPLOY / "proxy/Dockerfile"], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_image_has_the_files_of_the_proxy_and_no_root() -> None:
    """All files of the folder are in it; the user is the number that compose gives."""
    (copied,) = re.findall(r"^COPY (.+) /opt/proxy/$", TEXT, re.MULTILINE)
    (user,) = re.findall(r"^USER (.+)$", TEXT, re.MULTILINE)
    compose = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())

    assert {"Dockerfile", *copied.split()} == {path.name for path in (DEPLOY / "proxy").iterdir()}
    assert user == compose["services"]["proxy"]["user"] == "10002:10002"
    assert 'CMD ["/opt/proxy/start.sh"]' in TEXT
