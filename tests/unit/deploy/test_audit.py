"""`deploy/check audit` lists what is installed, and never calls unchecked what it could not check."""

from __future__ import annotations

import importlib.util
import json
import re
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pyspark
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
    bundled = list(audit.bundled_jars(audit.pyspark_jars()))

    content = audit.bill_of_materials(packages, jars, bundled)
    bill = Bom.from_json(content)  # type: ignore[attr-defined]

    names = {(each.name, each.version) for each in bill.components}
    assert names >= set(re.findall(r"^([\w.-]+)==(\S+)", packages, re.MULTILINE))
    assert names >= {("pyspark", "4.3.0"), ("kafka-clients", "3.9.2"), ("kafka-clients", "4.2.0")}
    hashes = {found.content for each in bill.components for found in each.hashes}
    files = list(Path(pyspark.__file__).parent.glob("jars/*.jar"))
    assert hashes == set(pinned_jars().values()) | {sha256(file.read_bytes()).hexdigest() for file in files}
    assert all(each.purl for each in bill.components)
    assert len(bundled) == len(files) > 200
    assert len({each["bom-ref"] for each in content["components"]}) == len(content["components"])


@pytest.mark.parametrize(
    ("name", "coordinates", "expected"),
    [
        ("codec-1.0.Final", ["org.a:codec:1.0.Final"], "pkg:maven/org.a/codec@1.0.Final"),
        ("codec-1.0-linux", ["org.a:codec:1.0"], "pkg:maven/org.a/codec@1.0?classifier=linux"),
        ("codec-1.0", ["org.b:shaded:2.0", "org.a:codec:1.0"], "pkg:maven/org.a/codec@1.0"),
        ("compiler-1.0", ["org.b:shaded:2.0"], "pkg:generic/compiler@1.0"),
        ("tool_2.13-4.0.7", [], "pkg:generic/tool_2.13@4.0.7"),
        ("zstd-jni-1.5.7-7", [], "pkg:generic/zstd-jni@1.5.7"),
        ("nothing", [], "pkg:generic/nothing@"),
    ],
)
def test_jar_has_its_own_coordinates(
    audit: ModuleType, tmp_path: Path, name: str, coordinates: list[str], expected: str
) -> None:
    """A jar may contain others, whose coordinates are not its own."""
    _jar(tmp_path / f"{name}.jar", coordinates)

    (found,) = audit.bundled_jars(tmp_path)

    assert found["purl"] == expected


def _jar(file: Path, coordinates: list[str]) -> None:
    with zipfile.ZipFile(file, "w") as content:
        content.writestr("META-INF/MANIFEST.MF", "")
        for each in coordinates:
            group, artifact, version = each.split(":")
            text = f"#made\nversion={version}\ngroupId={group}\nartifactId={artifact}\n"
            content.writestr(f"META-INF/maven/{group}/{artifact}/pom.properties", text)


@pytest.mark.parametrize(
    ("version", "events", "expected"),
    [
        ("1.11.0", [{"introduced": "0"}, {"fixed": "1.11.1"}], True),
        ("1.11.1", [{"introduced": "0"}, {"fixed": "1.11.1"}], False),
        ("1.9.9", [{"introduced": "1.10"}, {"fixed": "1.11.1"}], False),
        ("1.10.0", [{"introduced": "1.10"}, {"fixed": "1.11.1"}], True),
        ("4.2.13.Final", [{"introduced": "4.2.0.Alpha1"}, {"last_affected": "4.2.13.Final"}], True),
        ("4.2.14.Final", [{"introduced": "4.2.0.Alpha1"}, {"last_affected": "4.2.13.Final"}], False),
        ("2.0-rc1", [{"introduced": "1.0"}, {"fixed": "2.0"}], True),
        ("2.5", [{"introduced": "1"}, {"fixed": "2"}, {"introduced": "2.5"}, {"fixed": "3"}], True),
        ("2.2", [{"introduced": "1"}, {"fixed": "2"}, {"introduced": "2.5"}, {"fixed": "3"}], False),
        ("3.0", [{"introduced": "1"}], True),
        ("33.0-jre", [{"introduced": "1"}, {"fixed": "2"}], None),
        ("1.0", [{"introduced": "1"}, {"fixed": "2-jre"}], None),
    ],
    ids=str,
)
def test_version_is_in_a_range_or_not(
    audit: ModuleType, version: str, events: list[dict[str, str]], expected: bool | None
) -> None:
    """By numbers, not by texts; what has no order is not called safe."""
    affected = {"ranges": [{"type": "ECOSYSTEM", "events": events}]}

    assert audit.is_affected("Maven", version, affected) is expected


def test_jar_with_an_advisory_is_listed(audit: ModuleType, tmp_path: Path) -> None:
    """By an export of OSV, offline: jars and Python packages; a withdrawn record does not count."""
    _jar(tmp_path / "codec-1.0.jar", ["org.a:codec:1.0"])
    _jar(tmp_path / "odd-1.0-x.jar", ["org.a:odd:1.0-x"])
    bill = audit.bill_of_materials(LOCK, "", audit.bundled_jars(tmp_path))
    codec = _of("Maven", "org.a:codec", "1.1")
    records: dict[str, dict[str, Any]] = {
        "hit": {"id": "A-1", "aliases": ["CVE-1"], "summary": "bad", "affected": [codec]},
        "odd": {"id": "A-2", "affected": [_of("Maven", "org.a:odd", "1.1")]},
        "listed": {"id": "A-3", "affected": [_of("PyPI", "Beta", "0.9") | {"versions": ["2.0"]}]},
        "fixed": {"id": "A-4", "affected": [_of("PyPI", "alpha", "1.0")]},
        "elsewhere": {"id": "A-5", "affected": [_of("npm", "org.a:codec", "1.1")]},
        "withdrawn": {"id": "A-6", "withdrawn": "2026-01-01T00:00:00Z", "affected": [codec]},
    }
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as content:
        for name, record in records.items():
            content.writestr(f"{name}.json", json.dumps(record))
        content.writestr("broken.json", "{")

    found = list(audit.exported_advisories(tmp_path / "all.zip", bill["components"]))

    assert found == [
        f"{tmp_path}/all.zip: broken.json: not checked: it is not JSON",
        "org.a:codec 1.0: A-1, CVE-1: bad, fixed in 1.1",
        "org.a:odd 1.0-x: A-2: not checked: its versions cannot be compared",
        "beta 2.0: A-3: , fixed in 0.9",
        f"{tmp_path}/all.zip: 6 advisories, 3 lines above",
    ]


def _of(ecosystem: str, name: str, fixed: str) -> dict[str, Any]:
    ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": fixed}]}]
    return {"package": {"ecosystem": ecosystem, "name": name}, "ranges": ranges}


def test_shipped_list_names_components_that_are_installed(audit: ModuleType) -> None:
    """It is dated, each entry has a source, and PySpark's own jars are found by it."""
    packages, jars = audit.LOCK.read_text(), audit.JARS.read_text()
    bill = audit.bill_of_materials(packages, jars, audit.bundled_jars(audit.pyspark_jars()))
    names = {f"{each.get('group')}:{each['name']}" for each in bill["components"]}
    content = json.loads(audit.ADVISORIES.read_text())
    affected = [each for record in content["advisories"] for each in record["affected"]]

    lines = list(audit.shipped_advisories(bill["components"]))

    assert {each["package"]["name"] for each in affected} <= names
    assert all(record["references"] for record in content["advisories"])
    assert date.fromisoformat(content["reviewed"]) <= datetime.now(UTC).date()
    assert lines[-1].startswith(f"list of {content['reviewed']}: {len(content['advisories'])} advisories, ")
    assert not [line for line in lines if "not checked" in line]
    assert "at.yawk.lz4:lz4-java 1.11.0: GHSA-xx22-p4ch-683r, CVE-2026-59949: " in "".join(lines)


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
