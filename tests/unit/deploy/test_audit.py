"""`deploy/check audit` lists what is installed, and never calls unchecked what it could not check."""

from __future__ import annotations

import importlib.util
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cyclonedx.model.bom import Bom

from flowcore.installation.checksums import pinned_jars

ROOT = Path(__file__).parents[3]
LOCK = """\
alpha==1.0 \\
    --hash=sha256:1111111111111111111111111111111111111111111111111111111111111111
beta==2.0 \\
    --hash=sha256:2222222222222222222222222222222222222222222222222222222222222222
"""


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    """The program as a module."""
    spec = importlib.util.spec_from_file_location("audit", ROOT / "deploy/audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def advisories(answers: dict[str, Any]) -> Iterator[str]:
    """A service with OSV's interface; a package that is not named has no advisory."""

    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = json.dumps(answers.get(asked["package"]["name"], {})).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_bill_of_materials_has_every_package_and_jar(audit: ModuleType) -> None:
    """A reader of CycloneDX finds their names, versions and hashes."""
    packages = (ROOT / "requirements.lock").read_text()
    jars = (ROOT / "flowcore/installation/jars.sha256").read_text()

    bill = Bom.from_json(audit.bill_of_materials(packages, jars))  # type: ignore[attr-defined]

    names = {(each.name, each.version) for each in bill.components}
    assert names >= set(re.findall(r"^([\w.-]+)==(\S+)", packages, re.MULTILINE))
    assert names >= {("pyspark", "4.3.0"), ("kafka-clients", "3.9.2"), ("kafka-clients", "4.2.0")}
    hashes = {found.content for each in bill.components for found in each.hashes}
    assert hashes == set(pinned_jars().values())
    assert all(each.purl for each in bill.components)


def test_advisories_of_a_package_are_listed(audit: ModuleType) -> None:
    """Each has its version and where it is fixed; a package without one is counted."""
    affected = {
        "package": {"name": "beta", "ecosystem": "PyPI"},
        "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.1"}]}],
    }
    answers = {"beta": {"vulns": [{"id": "PYSEC-2026-1", "summary": "\x1b[2J", "affected": [affected]}]}}

    with advisories(answers) as url:
        found = list(audit.python_advisories(LOCK, ["--vulnerability-service=osv", f"--osv-url={url}"]))

    assert found == [
        "beta 2.0: PYSEC-2026-1, fixed in 2.1",
        "advisories of Python packages: 1 in 2 packages",
    ]


def test_advisories_are_not_checked_if_the_service_is_away(audit: ModuleType) -> None:
    """The report says so with the reason, and does not say that there are none."""
    with advisories({}) as url:
        pass

    found = list(audit.python_advisories(LOCK, ["--vulnerability-service=osv", f"--osv-url={url}"]))

    (line,) = found
    assert line.startswith("advisories of Python packages: not checked: pip-audit says: ")
    assert "refused" in line
