"""Environment of the endurance benchmark: a broker, its input, and Dagster as deployed."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer

from flowcore.errors import RunError
from flowcore.kafka.broker import EmbeddedBroker, free_port
from flowcore.kafka.topics import end_offsets, ensure_topics
from pipelines.nexmark import feed, generator, history
from tests.dagster.dagster_ui import PROJECT, Ui, environment_of
from tests.waiting import wait_until

BIDS, ENRICHED, HIGHEST, DEAD_LETTERS = "bids", "enriched-bids", "highest-bids", "bids.dead-letter"
PARTITIONS = 2
CONFIG = generator.NexmarkConfig()
LIVE = ("auctions", "live")
QUERIES = ("bids", "highest")
ENDED = {"SUCCESS", "FAILURE", "CANCELED"}
LONGEST_S = 600.0
POLL_S = 1.0
RESTART_S = 1.0


class Feeder:
    """Sends bids in order, at full speed or at a rate, and messages that are not bids."""

    def __init__(self, servers: str, history_events: int, rate: float) -> None:
        self._servers = servers
        self._events = history_events
        self.rate = rate
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._feeding: Future[feed.FeedReport] | None = None
        self.sent = 0
        self.refused: list[bytes] = []

    def backlog(self, bids: int) -> None:
        report = feed.feed(self._servers, BIDS, generator.live_batches(CONFIG, self._events, bids))
        self.sent += report.sent

    def start(self) -> None:
        tables = (
            generator.live_bids(CONFIG, self._events, first, 2_000)
            for first in itertools.count(self.sent, 2_000)
        )
        self._stop.clear()
        self._feeding = self._pool.submit(feed.feed, self._servers, BIDS, tables, self.rate, stop=self._stop)

    def stop(self) -> None:
        if self._feeding is not None:
            self._stop.set()
            self.sent += self._feeding.result().sent
            self._feeding = None

    def spoil(self, messages: int) -> None:
        """Send messages that are not bids."""
        producer = Producer({"bootstrap.servers": self._servers, "enable.idempotence": True})
        for _ in range(messages):
            self.refused.append(b"no bid, number %d" % len(self.refused))
            producer.produce(BIDS, self.refused[-1])
        if producer.flush(30):
            msg = f"not all of {messages} messages that are not bids reached topic {BIDS!r}"
            raise RunError(msg)

    def sent_bids(self) -> pa.Table:
        return pa.concat_tables(generator.live_batches(CONFIG, self._events, self.sent))


@dataclass
class Site:
    """Folders and processes of one run of this benchmark."""

    folder: Path
    broker: EmbeddedBroker
    feeder: Feeder
    ui: Ui
    code: CodeServer
    began_s: float = field(default_factory=time.time)
    story: list[dict[str, Any]] = field(default_factory=list)

    @property
    def servers(self) -> str:
        return self.broker.bootstrap_servers

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return time.time() - self.began_s

    def note_event(self, what: str, **more: Any) -> dict[str, Any]:
        """Add a note of an event to the story, and return it for completion."""
        note = {"what": what, "at_s": round(self.now_s, 1), **more}
        self.story.append(note)
        print(json.dumps(note), flush=True)  # noqa: T201 - the log of a long run
        return note

    def use_history(self, number: int) -> None:
        """Replace the history that the flow reads."""
        target = self.folder / "data" / "history"
        link = target.with_name("history.next")
        link.symlink_to(self.folder / "histories" / str(number))
        link.replace(target)

    def live_run(self) -> dict[str, Any]:
        """The latest run of the live job."""
        return self.ui.runs("auctions_live")[0]

    def last_beat(self) -> dict[str, Any]:
        """The last heartbeat of the live queries; empty before the first."""
        return next(iter(self.ui.beats(*LIVE, limit=1)), {"run": "", "at_s": 0.0})

    def written(self, topic: str = ENRICHED) -> int:
        """Number of records in an output topic."""
        return sum(end_offsets(self.servers, topic).values())

    def wait(self, condition: Callable[[], object], what: str, timeout_s: float = LONGEST_S) -> None:
        """Wait until a condition holds; requests to a busy webserver are repeated."""
        end = time.monotonic() + timeout_s
        while True:
            try:
                if condition():
                    return
            except OSError as error:
                print(f"asked again: {error}", flush=True)  # noqa: T201
            if time.monotonic() > end:
                msg = f"not within {timeout_s:.0f} s: {what}; {self.last_beat()}"
                raise RunError(msg)
            time.sleep(POLL_S)

    def reads_again(self, since_s: float, besides: str | None = None) -> bool:
        """Whether the live queries have sent a heartbeat since a time, in real time and with little lag.

        Args:
            since_s: Seconds since the epoch.
            besides: A run whose heartbeat does not count.
        """
        beat = self.last_beat()
        if beat["run"] == besides or beat["at_s"] <= since_s:
            return False
        live = all(beat.get(f"{query}/mode") == "realtime" for query in QUERIES)
        lags = [beat.get(f"{query}/lag") for query in QUERIES]
        return live and all(lag is not None and lag < 20 * self.feeder.rate for lag in lags)


@contextmanager
def code_server(home: Path, settings: Mapping[str, str]) -> Iterator[CodeServer]:
    """A code server as deployed: a separate process that is restarted when it ends (`restart: ...`)."""
    shutil.copy(PROJECT / "flowcore/dagster/dagster.yaml", home)
    server = CodeServer(home, settings)
    restarting = threading.Thread(target=server.keep, name="code server", daemon=True)
    restarting.start()
    try:
        yield server
    finally:
        server.stop()
        restarting.join()


class CodeServer:
    """A restarting code server; webserver and daemon find it by `workspace`."""

    def __init__(self, home: Path, settings: Mapping[str, str]) -> None:
        self._log = home / "code.log"
        self._environment = environment_of(home, settings)
        self._port = free_port()
        self._stopped = threading.Event()
        self.process = self._start()
        # Before other processes start: they would all create the tables of an empty DAGSTER_HOME.
        wait_until(lambda: not is_free(self._port), "the code server answers")
        self.workspace = home / "workspace.yaml"
        self.workspace.write_text(
            "load_from:\n"
            f"  - grpc_server: {{host: 127.0.0.1, port: {self._port}, location_name: pipelines}}\n"
        )

    def keep(self) -> None:
        while not self._stopped.is_set():
            self.process.wait()
            if not self._stopped.wait(RESTART_S):
                self.process = self._start()

    def stop(self) -> None:
        self._stopped.set()
        self.process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)  # it waits for open requests
        self.process.kill()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [
            sys.executable, "-m", "dagster", "api", "grpc", "--module-name", "pipelines.definitions",
            "--host", "127.0.0.1", "--port", str(self._port), "--location-name", "pipelines",
        ]  # fmt: skip
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command, cwd=PROJECT, env=self._environment, stdout=log, stderr=subprocess.STDOUT
            )


def prepare(folder: Path, servers: str, events: list[int]) -> None:
    """Create topics, and a history for each number of events."""
    ensure_topics(servers, dict.fromkeys((BIDS, ENRICHED, HIGHEST), PARTITIONS))
    (folder / "data").mkdir()
    for number, count in enumerate(events):
        history.write_history(CONFIG, count, folder / "histories" / str(number))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def parent_of(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("PPid:")).split()[1])


def processes_of(home: Path) -> dict[int, str]:
    """Processes with this DAGSTER_HOME in their environment, and their commands."""
    return dict(_processes(f"DAGSTER_HOME={home}\0".encode()))


def _processes(mark: bytes) -> Iterator[tuple[int, str]]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes() + b"\0" and int(process.name) != os.getpid():
                yield int(process.name), (process / "cmdline").read_text().replace("\0", " ")[:120]
        except OSError:  # it has ended, or is another user's
            continue
