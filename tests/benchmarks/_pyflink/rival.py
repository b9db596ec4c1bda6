"""Nexmark's queries in PyFlink SQL, from the topics that flowcore reads to a topic of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from flowcore.errors import RunError
from flowcore.installation.java import find_java
from pipelines.nexmark.answers import load_query
from pipelines.nexmark.events import AUCTIONS, BIDS, PERSONS
from tests.benchmarks._pyflink.installation import VERSION, connector, interpreter
from tests.benchmarks._window_rivals import TUNED_READ, TUNED_WRITE

__all__ = ["PyFlink", "query_text"]

_HERE = Path(__file__).parent
_NEIGHBOURS = Path(__file__).parents[3] / "pipelines" / "nexmark"
SAME_TEXT = frozenset({"q0", "q2", "q3", "q20", "q23"})
"""The queries whose text beside the flow is right for Flink too."""

_OPTIONS = {
    "parallelism.default": os.cpu_count() or 1,
    "table.local-time-zone": "UTC",
    # As Flink's Nexmark sets them.
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": 50_000,
    "table.optimizer.distinct-agg.split.enabled": "true",
    "pipeline.object-reuse": "true",
    "execution.checkpointing.interval": "10 s",
}
_READ = {"scan.startup.mode": "earliest-offset", "scan.bounded.mode": "latest-offset", "format": "json"}


def query_text(name: str) -> str | None:
    """The text of a query in Flink's SQL; None if there is none."""
    own = _HERE / "queries" / f"{name}.sql"
    if own.exists():
        return own.read_text()
    return (_NEIGHBOURS / f"{name}.sql").read_text() if name in SAME_TEXT else None


class PyFlink:
    """A process with PyFlink, whose JVM stays the same for all queries; a context manager.

    Args:
        servers: The broker.
        folder: For checkpoints and logs.
        heap: The heap of the JVM, for instance ``4g``.

    Attributes:
        pid: The process id of the JVM.

    Raises:
        InstallationError: PyFlink cannot be installed.
    """

    def __init__(self, servers: str, folder: Path, heap: str) -> None:
        self._servers, self._folder = servers, folder
        folder.mkdir()
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK"))},
            "JAVA_HOME": str(find_java().home),
            "JVM_ARGS": f"-Xmx{heap}",
            "FLINK_LOG_DIR": str(folder),
        }
        self._log = (folder / "stderr").open("w")
        self._process = subprocess.Popen(
            [interpreter(), _HERE / "worker.py"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=environment, text=True,
        )  # fmt: skip
        self.pid: int = self._answer()["pid"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # its input ends, so it ends
        self._log.close()

    def run(self, name: str, topic: str) -> int:
        """Run a query until its end, and return the time at which its sources began to read, in ms.

        Args:
            name: The query.
            topic: An empty topic for its results.

        Raises:
            RunError: It failed.
        """
        (sink,) = load_query(name).sinks
        key = sink.key if sink.updating else None
        job = {
            "options": {
                **_OPTIONS,
                "pipeline.jars": connector().as_uri(),
                "execution.checkpointing.dir": (self._folder / "checkpoints").as_uri(),
            },
            "tables": [self._declare(each.name, str(each.schema)) for each in (PERSONS, AUCTIONS, BIDS)],
            "query": query_text(name),
            "key": key,
            "sink": self._sink_options(topic, key),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        began_ms: int = self._answer()["began_ms"]
        return began_ms

    def _declare(self, topic: str, schema: str) -> str:
        kind = topic.removeprefix("nexmark-")
        options = {"connector": "kafka", "topic": topic, **self._client(TUNED_READ), **_READ}
        columns = f"{schema}, ts AS TO_TIMESTAMP_LTZ(date_time, 3)"
        watermark = "WATERMARK FOR ts AS ts - INTERVAL '4' SECOND"
        return f"CREATE TABLE {kind} ({columns}, {watermark}) WITH ({_texts(options)})"

    def _sink_options(self, topic: str, key: Sequence[str] | None) -> dict[str, str]:
        connection = {"topic": topic, **self._client(TUNED_WRITE)}
        if key is None:
            form = {"connector": "kafka", "format": "json", "json.timestamp-format.standard": "ISO-8601"}
        else:
            form = {
                "connector": "upsert-kafka",
                "key.format": "json",
                "value.format": "json",
                "value.json.timestamp-format.standard": "ISO-8601",
            }
        return {**form, **connection, "sink.delivery-guarantee": "at-least-once"}

    def _client(self, options: dict[str, str]) -> dict[str, str]:
        tuned = {f"properties.{name.removeprefix('kafka.')}": value for name, value in options.items()}
        return {"properties.bootstrap.servers": self._servers, **tuned}

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer = json.loads(self._process.stdout.readline() or '{"error": "its process has ended"}')
        if "error" in answer:
            msg = f"PyFlink {VERSION} failed: {answer['error'][:2000]}; see {self._folder}"
            raise RunError(msg)
        found: dict[str, Any] = answer
        return found


def _texts(options: dict[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
