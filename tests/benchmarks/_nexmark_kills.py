"""Nexmark's queries through kills: what readers find when drivers were killed and others have continued.

Each driver is ``flowcore run`` in a process of its own, in small batches. After a random number of batches
and a random time it is killed with its JVM and workers. The next one continues in the other mode,
micro-batches or slices; the last one reads the rest as a slice.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random

import click

from flowcore.errors import RunError
from flowcore.kafka.topics import ensure_topics
from pipelines.benchmark import this_commit, this_machine
from pipelines.nexmark.answers import BY_CLOCK, Answer, check_answer, check_folder, load_query
from pipelines.nexmark.events import PARTITIONS, Tables, result_topic

__all__ = ["Killing"]

_ROOT = Path(__file__).parents[2]
_BATCHES_A_LIFE = 3
"""A driver commits up to so many batches before it is killed."""
_LONGEST_DELAY_S = 3.0
_LIMIT_S = 3_600.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class _Killed:
    """A killed query: batches committed at each kill, its results, and the seconds of all drivers."""

    committed: tuple[int, ...]
    answer: Answer
    seconds: float


@dataclass(frozen=True, slots=True)
class Killing:
    """Queries whose drivers are killed.

    Attributes:
        servers: Address of the broker with the events.
        folder: For state, files and logs.
        tables: The events.
        kills: How many drivers of each query are killed.
        seed: Chooses the moments.
    """

    servers: str
    folder: Path
    tables: Tables
    kills: int
    seed: int

    def report(self, names: Sequence[str], *, as_json: bool) -> bool:
        """Kill each query, print what its readers find, and return whether every result is right."""
        found: dict[str, _Killed | RunError] = {}
        for name in names:
            try:
                found[name] = self._kill(name)
            except RunError as error:  # the other queries may take hours yet
                found[name] = error
            click.echo(_line(name, found[name]), err=as_json)
        if as_json:
            about = {"name": "nexmark kills", "machine": this_machine(), "commit": this_commit()}
            sizes = {kind: len(table) for kind, table in self.tables.items()}
            queries = {name: _as_json(each) for name, each in found.items()}
            click.echo(json.dumps({**about, "events": sizes, "seed": self.seed, "queries": queries}))
        return all(isinstance(each, _Killed) and each.answer.right for each in found.values())

    def _kill(self, name: str) -> _Killed:
        """Run a query to its end through the kills.

        Raises:
            RunError: A driver has ended before its kill, failed, or is not done after an hour.
        """
        moments = Random(f"{name}/{self.seed}")  # noqa: S311 - reproducible, not secret
        events = sum(map(len, self.tables.values()))
        batch = max(1, events // (2 * _BATCHES_A_LIFE * self.kills + 2))
        query = _Query(name, self.servers, self.folder / name, batch)
        ensure_topics(self.servers, {result_topic(name).name: PARTITIONS})
        began, committed = time.monotonic(), []
        for number in range(self.kills):
            with query.driver("slice" if number % 2 else "micro-batch") as driver:
                wanted = query.committed() + moments.randint(1, _BATCHES_A_LIFE)
                query.wait(driver, partial(query.has_committed, wanted))
                time.sleep(moments.uniform(0, _LONGEST_DELAY_S))
                query.require_alive(driver)
            committed.append(query.committed())
        with query.driver("slice") as driver, suppress(subprocess.TimeoutExpired):
            driver.wait(_LIMIT_S)
        query.require_success(driver)
        if name in BY_CLOCK:  # windows that wait for the clock
            with query.driver("micro-batch") as driver:
                query.wait(driver, lambda: query.answer(self.tables).right, poll_s=1.0)
        return _Killed(tuple(committed), query.answer(self.tables), time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class _Query:
    """``flowcore run`` of a query, with its state in one folder."""

    name: str
    servers: str
    folder: Path
    batch: int

    @contextmanager
    def driver(self, mode: str) -> Iterator[subprocess.Popen[bytes]]:
        """A driver, which is killed at the end of the block."""
        settings = {
            "kafka.bootstrap.servers": self.servers,
            "state.dir": self.folder / "state",
            "data.dir": self.folder,
            "execution.max-records-per-batch": self.batch,
        }
        flow = f"pipelines.nexmark.{self.name}:flow"
        command = [sys.executable, "-m", "flowcore.cli.main", "run", flow, "--mode", mode]
        for setting in settings.items():
            command += ["--set", "{}={}".format(*setting)]
        self.folder.mkdir(exist_ok=True)
        with self._log.open("ab") as log:
            driver = subprocess.Popen(
                command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            yield driver
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()

    def committed(self) -> int:
        """How many batches were committed, of all live queries of the flow; Spark removes older commits."""
        last: dict[Path, int] = {}
        for commit in self.folder.glob("state/*/checkpoints/*/commits/[0-9]*"):
            last[commit.parent] = max(last.get(commit.parent, 0), int(commit.name) + 1)
        return sum(last.values())

    def has_committed(self, batches: int) -> bool:
        return self.committed() >= batches

    def answer(self, tables: Tables) -> Answer:
        if load_query(self.name).sinks[0].topic is None:
            return check_folder(self.name, tables, self.folder)
        return check_answer(self.name, tables, self.servers)

    def wait(
        self, driver: subprocess.Popen[bytes], done: Callable[[], bool], poll_s: float = _POLL_S
    ) -> None:
        """Wait until a condition is true, while a driver runs."""
        end = time.monotonic() + _LIMIT_S
        while not done():
            self.require_alive(driver)
            if time.monotonic() > end:
                raise self._error(driver)
            time.sleep(poll_s)

    def require_alive(self, driver: subprocess.Popen[bytes]) -> None:
        if driver.poll() is not None:
            raise self._error(driver)

    def require_success(self, driver: subprocess.Popen[bytes]) -> None:
        if driver.returncode:
            raise self._error(driver)

    @property
    def _log(self) -> Path:
        return self.folder / "drivers.log"

    def _error(self, driver: subprocess.Popen[bytes]) -> RunError:
        state = "still runs" if driver.returncode is None else f"has ended with code {driver.returncode}"
        log = self._log.read_text(errors="replace")[-2_000:]
        return RunError(
            f"a driver of {self.name} {state}, in place of what was expected of it within an hour. "
            f"What it printed ends with:\n{log}"
        )


def _line(name: str, found: _Killed | RunError) -> str:
    if isinstance(found, RunError):
        return f"{name}: FAILED: {found}"
    answer, verdict = found.answer, "right" if found.answer.right else "WRONG"
    return (
        f"{name:<4} {verdict}: {answer.rows:,} rows, {answer.missing} missing, "
        f"{answer.unexpected} unexpected, {answer.altered} altered, {answer.repeats:,} repeated; "
        f"killed after {', '.join(map(str, found.committed))} batches; {found.seconds:.0f} s"
    )


def _as_json(found: _Killed | RunError) -> dict[str, object]:
    if isinstance(found, RunError):
        return {"right": False, "error": str(found)}
    committed = {"committed_at_kill": list(found.committed), "seconds": round(found.seconds, 1)}
    return {"right": found.answer.right, **asdict(found.answer), **committed}
