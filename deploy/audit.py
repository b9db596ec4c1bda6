"""A report on what flowcore installs: a bill of materials, and the known advisories of it.

The bill (CycloneDX 1.6, JSON) has the Python packages of `requirements.lock`, the jars of `jars.sha256`, and
PySpark's own jars, with their hashes. Advisories come from the list beside this file, from an export of
OSV (`--osv FILE.zip`), and from the service that pip-audit asks. What could not be checked is reported as
such.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from flowcore.escaping import printable

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
JARS = ROOT / "flowcore/installation/jars.sha256"
ADVISORIES = Path(__file__).with_name("advisories.json")
_PACKAGE = re.compile(r"^([\w.-]+)==([^\s;]+)(.*(?:\n    .*)*)", re.MULTILINE)
_JAR = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*(?:-(?:alpha|beta|rc|M)\w*)?)(?:-(?P<classifier>.+))?")
_MAVEN = re.compile(
    r"(\d+(?:\.\d+)*)(?:[.-](?:final|ga|release)|[.-]?(alpha|beta|milestone|m|cr|rc)[.-]?(\d*))?",
    re.IGNORECASE,
)
_BEFORE_RELEASE = ("alpha", "beta", "m", "milestone", "cr", "rc")


def main(file: Path, arguments: Sequence[str]) -> None:
    """Write the bill to a file, and print the report; arguments are passed on to pip-audit."""
    parser = argparse.ArgumentParser(prog="deploy/check audit", allow_abbrev=False)
    parser.add_argument("--osv", type=Path, help="a zip of OSV records, one JSON each")
    given, others = parser.parse_known_args(arguments)
    packages, jars = LOCK.read_text(), JARS.read_text()
    bundled = list(bundled_jars(pyspark_jars()))
    bill = bill_of_materials(packages, jars, bundled)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(bill, indent=1) + "\n")
    count, components = len(_PACKAGE.findall(packages)), bill["components"]
    pinned = len(components) - count - len(bundled)
    print(f"{file}: {count} Python packages, {pinned} jars, {len(bundled)} jars in PySpark")  # noqa: T201
    for line in (*shipped_advisories(components), *python_advisories(packages, others)):
        print(printable(line))  # noqa: T201
    for line in exported_advisories(given.osv, components) if given.osv else ():
        print(printable(line))  # noqa: T201
    if not given.osv:
        print("other advisories of jars: not checked: pass an export of OSV by --osv FILE.zip")  # noqa: T201


def pyspark_jars() -> Path:
    """The folder of PySpark's own jars."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        msg = "pyspark is not installed: its jars cannot be listed"
        raise SystemExit(msg)
    return Path(found.origin).parent / "jars"


def bundled_jars(folder: Path) -> Iterator[dict[str, Any]]:
    """A component for each jar of a folder, by its coordinates of Maven or, without them, its file's name."""
    for file in sorted(folder.glob("*.jar")):
        group, name, version, rest = _coordinates(file)
        purl = f"pkg:maven/{group}/{name}@{version}" if group else f"pkg:generic/{name}@{version}"
        yield {
            "type": "library",
            **({"group": group} if group else {}),
            "name": name,
            "version": version,
            "purl": f"{purl}?classifier={rest}" if rest and group else purl,
            "bom-ref": f"pyspark/jars/{file.name}",  # a jar of flowcore's may have the same coordinates
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(file.read_bytes()).hexdigest()}],
        }


def _coordinates(jar: Path) -> tuple[str, str, str, str]:
    """Group, name, version and classifier, by the coordinates that fit the file's name, not a shaded jar."""
    with zipfile.ZipFile(jar) as content:
        for entry in content.namelist():
            if re.fullmatch(r"META-INF/maven/[^/]+/[^/]+/pom\.properties", entry):
                lines = content.read(entry).decode().splitlines()
                found = dict(line.strip().split("=", 1) for line in lines if "=" in line and line[0] != "#")
                name, version = found.get("artifactId", ""), found.get("version", "")
                if jar.stem == f"{name}-{version}" or jar.stem.startswith(f"{name}-{version}-"):
                    return found["groupId"], name, version, jar.stem[len(f"{name}-{version}-") :]
    parts = _JAR.fullmatch(jar.stem)
    return (
        ("", parts["name"], parts["version"], parts["classifier"] or "") if parts else ("", jar.stem, "", "")
    )


def bill_of_materials(packages: str, jars: str, bundled: Iterable[dict[str, Any]] = ()) -> dict[str, Any]:
    """The bill as JSON values, the same for the same lock and the same jars."""
    python = [
        {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name}@{version}",
            "bom-ref": f"pkg:pypi/{name}@{version}",
            # A package has a file for each platform; one that was not locked is not installed.
            "properties": [
                {"name": "flowcore:sha256", "value": digest}
                for digest in re.findall("--hash=sha256:([0-9a-f]{64})", rest)
            ],
        }
        for name, version, rest in _PACKAGE.findall(packages)
    ]
    java = {}
    for line in jars.splitlines():
        digest, _, coordinates = line.split()
        group, name, version = coordinates.split(":")
        purl = f"pkg:maven/{group}/{name}@{version}"
        java[purl] = {
            "type": "library",
            "group": group,
            "name": name,
            "version": version,
            "purl": purl,
            "bom-ref": purl,
            "hashes": [{"alg": "SHA-256", "content": digest}],
        }
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "flowcore", "bom-ref": "flowcore"}},
        "components": [*python, *java.values(), *bundled],
    }


def shipped_advisories(components: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The advisories of the list beside this file, with the day on which it was reviewed."""
    listed = json.loads(ADVISORIES.read_text())
    found = list(listed_advisories(components, listed["advisories"]))
    yield from found
    yield f"list of {listed['reviewed']}: {len(listed['advisories'])} advisories, {len(found)} lines above"


def exported_advisories(file: Path, components: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The advisories of an export of OSV: a zip with a JSON file for each."""
    records = []
    with zipfile.ZipFile(file) as content:
        for name in content.namelist():
            try:
                records.append(json.loads(content.read(name)))
            except ValueError:
                yield f"{file}: {name}: not checked: it is not JSON"
    found = list(listed_advisories(components, records))
    yield from found
    yield f"{file}: {len(records)} advisories, {len(found)} lines above"


def listed_advisories(
    components: Iterable[Mapping[str, Any]], records: Iterable[Mapping[str, Any]]
) -> Iterator[str]:
    """A line for each component whose version has an advisory of OSV's form, or cannot be compared."""
    versions: dict[tuple[str, str], set[str]] = {}
    for each in components:
        versions.setdefault(_package(each), set()).add(each["version"])
    for record in records:
        if record.get("withdrawn"):
            continue
        for affected in record.get("affected", ()):
            package = affected.get("package", {})
            key = (package.get("ecosystem", ""), _name(package.get("ecosystem", ""), package.get("name", "")))
            for version in sorted(versions.get(key, ())):
                hit = is_affected(key[0], version, affected)
                names = ", ".join((record["id"], *record.get("aliases", ())))
                if hit is None:
                    yield f"{key[1]} {version}: {names}: not checked: its versions cannot be compared"
                elif hit:
                    yield f"{key[1]} {version}: {names}: {record.get('summary', '')}, {_fix(affected)}"


def is_affected(ecosystem: str, version: str, affected: Mapping[str, Any]) -> bool | None:
    """Whether an advisory counts for a version; None if a version is not one that can be compared.

    >>> events = [{"introduced": "4.2.0"}, {"fixed": "4.2.15.Final"}]
    >>> netty = {"ranges": [{"type": "ECOSYSTEM", "events": events}]}
    >>> [is_affected("Maven", each, netty) for each in ("4.1.9", "4.2.13.Final", "4.2.15.Final", "4.2-jre")]
    [False, True, False, None]
    """
    if version in affected.get("versions", ()):
        return True
    own, unknown = _comparable(ecosystem, version), False
    for each in affected.get("ranges", ()):
        if each.get("type") not in ("ECOSYSTEM", "SEMVER"):
            continue
        events = [
            (_comparable(ecosystem, text), kind) for event in each["events"] for kind, text in event.items()
        ]
        if own is None or any(bound is None for bound, _ in events):
            unknown = True
            continue
        hit = False
        for bound, kind in sorted(events):
            if kind == "introduced" and own >= bound:
                hit = True
            if (kind == "fixed" and own >= bound) or (kind == "last_affected" and own > bound):
                hit = False
        if hit:
            return True
    return None if unknown else False


def _comparable(ecosystem: str, version: str) -> Any:
    """What orders the versions of an ecosystem, or None for one that has other qualifiers."""
    if ecosystem == "PyPI":
        try:
            return Version(version)
        except InvalidVersion:
            return None
    parts = _MAVEN.fullmatch(version)
    if parts is None:
        return None
    numbers = [int(each) for each in parts[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    kind = (parts[2] or "").lower()
    return numbers, _BEFORE_RELEASE.index(kind) if kind else len(_BEFORE_RELEASE), int(parts[3] or 0)


def _package(component: Mapping[str, Any]) -> tuple[str, str]:
    """The ecosystem and the name by which OSV has a component."""
    ecosystem = {"pkg:pypi": "PyPI", "pkg:maven": "Maven"}.get(component["purl"].partition("/")[0], "")
    name = component["name"] if ecosystem == "PyPI" else f"{component.get('group', '')}:{component['name']}"
    return ecosystem, _name(ecosystem, name)


def _name(ecosystem: str, name: str) -> str:
    return canonicalize_name(name) if ecosystem == "PyPI" else name


def _fix(affected: Mapping[str, Any]) -> str:
    events = [event for each in affected.get("ranges", ()) for event in each["events"]]
    fixed = [event["fixed"] for event in events if "fixed" in event]
    return f"fixed in {', '.join(fixed)}" if fixed else "no version fixes it yet"


def python_advisories(packages: str, arguments: Sequence[str]) -> Iterator[str]:
    """Known advisories of locked packages, and which packages could not be checked and why."""
    # A service that does not know one package of the lock serves no advisories: so one is asked before all.
    first = _PACKAGE.search(packages)
    if first is None:
        yield "advisories of Python packages: not checked: the lock has no package"
        return
    for text in (first[0], packages):
        found, problem = _ask(text, arguments)
        unknown = [each for each in found if "skip_reason" in each]
        if problem or (found and len(unknown) == len(found)):
            why = problem or unknown[0]["skip_reason"]
            yield f"advisories of Python packages: not checked: pip-audit says: {why}"
            return
    for each in unknown:
        yield f"{each['name']}: not checked: {each['skip_reason']}"
    known = [(each, one) for each in found for one in each.get("vulns", ())]
    for each, one in known:
        fixed = ", ".join(one["fix_versions"]) or "no version yet"
        yield f"{each['name']} {each['version']}: {one['id']}, fixed in {fixed}"
    yield f"advisories of Python packages: {len(known)} in {len(found) - len(unknown)} packages"


def _ask(packages: str, arguments: Sequence[str]) -> tuple[list[dict[str, Any]], str]:
    """What pip-audit has found for each package, or why it has found nothing."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(packages)
        file.flush()
        done = subprocess.run(  # noqa: S603 - a program of the environment
            [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--progress-spinner=off",
             "--format=json", "--timeout=15", "--requirement", file.name, *arguments],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        lines = done.stderr.strip().splitlines() or ["nothing"]
        return [], lines[-1]
    return found, ""


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
