"""All benchmarks one after the other, each as a command of its own, and their results as JSON files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from flowcore.errors import RunError
from tests.benchmarks._suite import SUITE, Entry, Size

RESULTS = Path(".flowcore/bench")
_SHOWN_LINES = 20
_PATIENCE_S = 120.0
_MAIN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # a shell's & ignores it
    "from flowcore.cli.main import main; main()"
)


@click.command()
@click.option("--quick", "size", flag_value="quick", help="A small size of each benchmark: minutes in all.")
@click.option(
    "--smallest", "size", flag_value="smallest", help="Only whether each runs, and its answers are right."
)
@click.option("--only", "names", multiple=True, metavar="NAME", help="Only this one; may be repeated.")
@click.option(
    "--results", type=click.Path(path_type=Path), default=RESULTS, show_default=True,
    help="Folder of the results, which `flowcore bench report` reads.",
)  # fmt: skip
def command(*, size: Size | None, names: tuple[str, ...], results: Path) -> None:
    """Run every benchmark, full-size unless told otherwise; the exit code is 1 if one fails."""
    known = [entry.name for entry in SUITE]
    if unknown := sorted({*names} - {*known}):
        msg = f"--only {', '.join(unknown)} does not exist; the benchmarks are {', '.join(known)}"
        raise click.UsageError(msg)
    results.mkdir(parents=True, exist_ok=True)
    size = size or "full"
    chosen = [entry for entry in SUITE if (not names or entry.name in names) and entry.is_in(size)]
    failed = [entry.name for entry in chosen if not _run(entry, size, results)]
    click.echo(f"{len(chosen) - len(failed)} passed, {len(failed)} failed")
    if failed:
        msg = f"benchmarks failed: {', '.join(failed)}; their output is above"
        raise RunError(msg)


def _run(entry: Entry, size: Size, results: Path) -> bool:
    """Run a benchmark; keep its report in a file. The file of an earlier run is removed."""
    file = results / f"{entry.name}.json"
    file.unlink(missing_ok=True)
    began = time.monotonic()
    command = [sys.executable, "-c", _MAIN, "bench", entry.benchmark, *entry.options(size), "--json"]
    done = run_command(command)
    seconds = round(time.monotonic() - began)
    words = " ".join(["flowcore bench", entry.benchmark, *entry.options(size)])
    report = _report(done.stdout) if done.returncode == 0 else None
    click.echo(f"{entry.name}: {'passed' if report else 'FAILED'} in {seconds} s: {words}")
    if report is None:
        click.echo("\n".join([*done.stderr.splitlines(), *done.stdout.splitlines()][-_SHOWN_LINES:]))
        return False
    kept = {"name": entry.name, "size": size, "command": words, "seconds": seconds, "report": report}
    file.write_text(json.dumps(kept, indent=1))
    return True


def run_command(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. An interrupt reaches it once, and it has two minutes to clean up.

    It has its own process group: Ctrl-C in a terminal would interrupt it a second time, while it cleans up.

    Raises:
        KeyboardInterrupt: It was interrupted, and has ended. A second interrupt kills the group.
    """
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        process_group=0,
    ) as process:  # fmt: skip
        try:
            stdout, stderr = process.communicate()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=_PATIENCE_S)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _report(output: str) -> object:
    """The JSON object that a benchmark printed last; None if there is none."""
    try:
        return json.loads(output.strip().rpartition("\n")[2])
    except ValueError:
        return None
