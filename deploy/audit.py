"""A report on what flowcore installs: a bill of materials, and the known advisories of it.

The bill (CycloneDX 1.6, JSON) has the Python packages of `requirements.lock` and the jars of `jars.sha256`,
with their hashes. Advisories come from the service that pip-audit asks. What it could not check is reported
as such.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flowcore.escaping import printable

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
JARS = ROOT / "flowcore/installation/jars.sha256"
_PACKAGE = re.compile(r"^([\w.-]+)==([^\s;]+)(.*(?:\n    .*)*)", re.MULTILINE)


def main(file: Path, arguments: Sequence[str]) -> None:
    """Write the bill to a file, and print the report; arguments are passed on to pip-audit."""
    packages, jars = LOCK.read_text(), JARS.read_text()
    bill = bill_of_materials(packages, jars)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(bill, indent=1) + "\n")
    count = len(_PACKAGE.findall(packages))
    print(f"{file}: {count} Python packages, {len(bill['components']) - count} jars")  # noqa: T201
    for line in python_advisories(packages, arguments):
        print(printable(line))  # noqa: T201
    print("advisories of jars: not checked: pip-audit knows Python packages only; give the file to a scanner")  # noqa: T201


def bill_of_materials(packages: str, jars: str) -> dict[str, Any]:
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
        "components": [*python, *java.values()],
    }


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
