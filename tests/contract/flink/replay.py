"""Replays transcripts on Apache Flink's own operators, in Flink's operator test harness.

This shows that the contract in ``tests/contract/transcripts`` is what Flink does. It needs a JDK 17
or later and, once, a network: the Ivy that PySpark ships resolves Flink's jars into the cache of
flowcore. ``src/Replay.java`` compares. Each driver beside it runs one of Flink's operators in one
or more *setups*, of which the first is the main one and the others are cross-checks.

With ``--mutants`` each expectation is then spoiled once, and every mutant must disagree, since the
comparison is exact. The exit code is 1 if a transcript disagrees that is not in `DELIBERATE`, or if
a mutant agrees.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from mutants import KINDS, mutants_of

from flowcore.installation.cache import cache_folder
from flowcore.installation.jars import pyspark_jars
from flowcore.installation.java import find_java
from flowcore.testing.transcripts.load import read_yaml

HERE = Path(__file__).parent
CONTRACT = HERE.parent
SHARED = CONTRACT.parents[2] / "shared" / "transcripts"
MAIN_SETUPS = ("plain", "source", "merging-window-set", "map-bundle")

DELIBERATE: Mapping[str, str] = {
    "beginning-of-time-tumbling": "the ends of time",
    "end-of-time-session": "the ends of time",
    "end-of-time-tumbling": "the ends of time",
    "session-late-with-endless-lateness": "the ends of time",
    "tumbling-refused-records-change-nothing": "a refused batch changes nothing",
}
"""Transcripts on which Flink differs in every setup, with the paragraph of docs/flink.md that says why."""
COLD_RESTART = "cold-restart"
"""The setup in which Flink forgets the watermark at a restart: its differences are deliberate."""
ENDLESS = frozenset({"global-continuous-trigger"})
"""Transcripts that Flink does not finish: it fires for each interval up to the end of time."""


def main() -> int:
    """Replay, print what disagrees, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "files", nargs="*", type=Path, help="transcripts or folders; default: all of the contract"
    )
    parser.add_argument("--flink", default="2.1.1", help="version of Flink (default: %(default)s)")
    parser.add_argument("--mutants", action="store_true", help="then spoil every expectation once")
    given = parser.parse_args()
    jdk = find_jdk()
    jars = resolve_jars(given.flink)
    folders = given.files or [SHARED if SHARED.is_dir() else CONTRACT / "transcripts", CONTRACT / "variants"]
    paths = [path for folder in folders for path in files_of(folder) if path.stem not in ENDLESS]
    transcripts = {
        path.name: found for path in paths if (found := read_yaml(path))["operator"]["kind"] in KINDS
    }
    with tempfile.TemporaryDirectory(prefix="flowcore-flink-") as scratch:
        classes = Path(scratch, "classes")
        sources = sorted((HERE / "src").glob("*.java"))
        subprocess.run([jdk / "javac", "-nowarn", "-d", classes, "-cp", f"{jars}/*", *sources], check=True)
        java = [str(jdk / "java"), "-cp", f"{classes}:{jars}/*", "Replay"]
        summary, found = run(java, transcripts.items(), Path(scratch))
        click.echo(summary)
        failed = report(found)
        if given.mutants:
            agreeing = [item for item in transcripts.items() if Path(item[0]).stem not in DELIBERATE]
            spoiled = [mutant for name, each in agreeing for mutant in mutants_of(name, each)]
            _, found = run(java, spoiled, Path(scratch), *MAIN_SETUPS)
            noticed = {entry["file"] for entry in found}
            missed = [name for name, _ in spoiled if name not in noticed]
            click.echo("\n  ".join([f"mutants: {len(spoiled)}, noticed: {len(noticed)}", *missed]))
            failed += len(missed)
    click.echo(f"{len(transcripts) - failed} passed, {failed} failed")
    return 1 if failed else 0


def files_of(place: Path) -> list[Path]:
    """Return the transcripts of a folder, or the one file."""
    return sorted(place.glob("*.yaml")) if place.is_dir() else [place]


def find_jdk() -> Path:
    """Return the folder of ``java`` and ``javac``; exit with the way out if there is no compiler."""
    compiler = shutil.which("javac") or shutil.which("javac", path=Path(find_java().executable).parent)
    if compiler is None:
        sys.exit("replay: no javac: Flink's operators cannot be run; install a JDK (openjdk-17-jdk-headless)")
    return Path(compiler).parent


def resolve_jars(version: str) -> Path:
    """Return a folder with the jars of one version of Flink, downloading them once."""
    folder = cache_folder() / "flink" / version
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    ivy = next(pyspark_jars().glob("ivy-*.jar"))
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        pattern = f"{scratch}/jars/[artifact]-[revision](-[classifier]).[ext]"
        click.echo(f"replay: downloading Flink {version} into {folder}, once")
        done = subprocess.run(
            [find_java().executable, f"-Dflink.version={version}", "-jar", ivy, "-warn",
             "-ivy", HERE / "ivy.xml",
             "-confs", "flink", "-cache", f"{scratch}/cache", "-retrieve", pattern],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            sys.exit(f"replay: the jars of Flink {version} cannot be resolved:\n{done.stdout}")
        Path(scratch, "jars").rename(folder)
    return folder


def run(
    java: list[str], transcripts: Iterable[tuple[str, Mapping[str, Any]]], scratch: Path, *setups: str
) -> tuple[str, list[dict[str, str]]]:
    """Replay in a JVM; return the summary and the disagreements, each with kind, setup, file and text."""
    lines = scratch / "transcripts.jsonl"
    lines.write_text("".join(json.dumps({"file": name, "doc": each}) + "\n" for name, each in transcripts))
    done = subprocess.run([*java, lines, *setups], stdout=subprocess.PIPE, text=True, check=True)
    summary, _, rest = done.stdout.partition("\n\n")
    found = []
    for line in rest.splitlines():
        where, file, text = line.split(" | ", 2)
        kind, setup = where.split(" / ")
        found.append({"kind": kind, "setup": setup, "file": file, "text": text})
    return summary, found


def report(found: Iterable[Mapping[str, str]]) -> int:
    """Print the disagreements; return how many transcripts disagree unexpectedly."""
    deliberate: dict[tuple[str, str], int] = {}
    unexpected = set()
    for entry in found:
        reason = "a restart" if entry["setup"] == COLD_RESTART else DELIBERATE.get(Path(entry["file"]).stem)
        if entry["text"].startswith("no counterpart"):
            continue
        if reason is None:
            click.echo(f"DISAGREES {entry['setup']} {entry['file']}: {entry['text']}")
            unexpected.add(entry["file"])
        else:
            key = entry["file"], reason
            deliberate[key] = deliberate.get(key, 0) + 1
    for (file, reason), steps in sorted(deliberate.items()):
        click.echo(f"deliberate: {file} ({reason}), {steps} expectations")
    return len(unexpected)


if __name__ == "__main__":
    sys.exit(main())
