"""Runs of a contender: over records in Kafka, and over records that arrive at random moments."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

from flowcore.errors import RunError
from flowcore.kafka.topics import ensure_topics
from pipelines.auctions.readers import Collector, latencies_ms, read_messages
from pipelines.nexmark import feed
from tests.benchmarks._delays import select_sent, summarize_delays
from tests.benchmarks._peers.contenders import Contender, Job
from tests.benchmarks._peers.processes import Processes, now_ms
from tests.benchmarks._peers.workloads import (
    KEYS,
    MATCHED,
    PARTITIONS,
    WORKLOADS,
    Answer,
    bids_of,
    read_outputs,
    write_auctions,
)
from tests.benchmarks._topics import delete_other_topics

__all__ = ["Latency", "Site", "Throughput"]

CHECKPOINT_S, LIVE_CHECKPOINT_S = 10, 60
_POLL_S, _QUIET_S, _LONGEST_QUIET_S = 0.25, 4.0, 240.0
RATE = 1_000.0
_LIVE_MS = 1_000.0
_SETTLE_S = 1.0
"""Between what may disturb a contender and the bids that count."""
_TAIL_CHARACTERS = 1_500


@dataclass(frozen=True, slots=True)
class Throughput:
    """One run over records in Kafka.

    Attributes:
        first_result_s: Seconds from the command to the first result in the topic.
        seconds: From the first input read to the last result in the topic.
        whole_s: From the command to the last result.
    """

    records: int
    outputs: int
    first_result_s: float
    seconds: float
    whole_s: float
    peak_mb: float
    cpu_s: float

    @property
    def per_second(self) -> float:
        """Records a second, from the first input read to the last result."""
        return self.records / self.seconds


@dataclass(frozen=True, slots=True)
class Latency:
    """One run over records that arrive, from the send to the receipt of its result.

    Attributes:
        slow_seconds: Seconds in which a record took longer than 100 ms.
        cpu_s: Processor time from the first record that counts until a second after the last one.
    """

    outputs: int
    first_result_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    slow_seconds: int
    peak_mb: float
    cpu_s: float


class Site:
    """The broker with its topics, and a folder.

    Args:
        servers: The broker.
        folder: For the bounded table and the state of all runs.
    """

    def __init__(self, servers: str, folder: Path) -> None:
        self.servers, self.folder = servers, folder
        self.table = folder / "auctions.csv"
        write_auctions(self.table)
        self._filled: dict[tuple[str, int], tuple[str, pa.Table]] = {}
        self._number = 0

    def throughput(self, contender: Contender, workload: str, count: int) -> Throughput:
        """Run a contender over this many records.

        Raises:
            InstallationError: It cannot be installed.
            RunError: It failed, or its results are wrong.
        """
        python = contender.install()
        source, records = self._fill(workload, count)
        with self._job(workload, source, CHECKPOINT_S, linger_ms=50) as job:
            launch = contender.prepare(python, job)
            began_ms = now_ms()
            with Processes(launch.start(), self._port) as processes:
                try:
                    answer = self._await(workload, records, job, processes)
                except RunError as error:
                    msg = f"{error}; {_tail(job.folder)}"
                    raise RunError(msg) from error
                processes.sample()
        # It reads at the latest when its first result is there, also if that was too soon to be seen.
        reading_ms = min(processes.reading_ms or answer.first_ms, answer.first_ms)
        return Throughput(
            records=count,
            outputs=answer.outputs,
            first_result_s=(answer.first_ms - began_ms) / 1_000,
            seconds=max(answer.last_ms - reading_ms, 1) / 1_000,
            whole_s=(answer.last_ms - began_ms) / 1_000,
            peak_mb=processes.peak_mb(),
            cpu_s=processes.cpu_s(answer.last_ms),
        )

    def latency(self, contender: Contender, warm_up_s: float, measured_s: float) -> Latency:
        """Let bids arrive at a contender, and measure after its warm-up.

        Raises:
            InstallationError: It cannot be installed.
            RunError: It failed, or its results are wrong.
        """
        python = contender.install()
        with self._job("latency", self._topic("in"), LIVE_CHECKPOINT_S, linger_ms=0) as job:
            launch = contender.prepare(python, job)
            began_ms = now_ms()
            with (
                Collector(self.servers, [job.sink]) as results,
                _Arrivals(self.servers, job.source) as arrivals,
                Processes(launch.start(), self._port) as processes,
            ):
                try:
                    _wait(lambda: results.count(job.sink) > 0, _LONGEST_QUIET_S, processes)
                    _wait(lambda: self._is_live(results, job.sink), _LONGEST_QUIET_S, processes)
                    time.sleep(warm_up_s)
                    period = _measure(processes, measured_s)
                    records = bids_of(np.arange(arrivals.stop()))
                    expected = int(np.count_nonzero(records["key"].to_numpy() < KEYS * MATCHED))
                    _wait(lambda: results.count(job.sink) >= expected, _LONGEST_QUIET_S, processes)
                    processes.sample()
                except RunError as error:
                    msg = f"{error}; {_tail(job.folder)}"
                    raise RunError(msg) from error
            answer = self._check("latency", records, job)
        if not answer.right:
            msg = f"its results are wrong: {answer}"
            raise RunError(msg)
        delays = summarize_delays(*select_sent(results.since(job.sink, 0), period.from_us, period.until_us))
        return Latency(
            outputs=answer.outputs,
            first_result_s=(answer.first_ms - began_ms) / 1_000,
            p50_ms=delays.p50_ms,
            p99_ms=delays.p99_ms,
            max_ms=delays.max_ms,
            slow_seconds=delays.slow_seconds,
            peak_mb=processes.peak_mb(),
            cpu_s=period.cpu_s,
        )

    def forget_records(self) -> None:
        """Delete the topics with the records of all workloads."""
        self._filled.clear()
        delete_other_topics(self.servers, ())

    @staticmethod
    def _is_live(results: Collector, topic: str) -> bool:
        """Whether the bids that arrived during the start are done."""
        recent = results.since(topic, time.time_ns() // 1_000 - 500_000)
        return bool(recent) and latencies_ms(recent).max() < _LIVE_MS

    @property
    def _port(self) -> int:
        return int(self.servers.rpartition(":")[2])

    @contextmanager
    def _job(self, workload: str, source: str, checkpoint_s: int, *, linger_ms: int) -> Iterator[Job]:
        """A job; afterwards its folder is deleted, and all topics but those with records for other runs."""
        folder = Path(tempfile.mkdtemp(dir=self.folder, prefix=f"{workload}-"))
        sink = self._topic("out", {"message.timestamp.type": "LogAppendTime"})
        try:
            yield Job(workload, self.servers, source, sink, self.table, folder, checkpoint_s, linger_ms)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            delete_other_topics(self.servers, [topic for topic, _ in self._filled.values()])

    def _topic(self, purpose: str, configs: dict[str, str] | None = None) -> str:
        self._number += 1
        name = f"{purpose}-{self._number}"
        ensure_topics(self.servers, {name: PARTITIONS}, configs)
        return name

    def _fill(self, workload: str, count: int) -> tuple[str, pa.Table]:
        """The topic that has the records, and the records."""
        if (workload, count) not in self._filled:
            records, topic = WORKLOADS[workload].records(count), self._topic("in")
            parts = (records.slice(start, 100_000) for start in range(0, len(records), 100_000))
            feed.feed(self.servers, topic, parts, key="key")
            self._filled[workload, count] = topic, records
        return self._filled[workload, count]

    def _await(self, workload: str, records: pa.Table, job: Job, processes: Processes) -> Answer:
        """Wait until the answer is complete, and check it."""
        answer = None
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "outputs"})
        outputs, changed_s = 0, time.monotonic()
        try:
            while time.monotonic() < changed_s + _LONGEST_QUIET_S:
                time.sleep(_POLL_S)
                processes.require_alive()
                ends = (
                    consumer.get_watermark_offsets(TopicPartition(job.sink, partition), 10)[1]
                    for partition in range(PARTITIONS)
                )
                if (now := sum(ends)) != outputs:
                    outputs, changed_s, answer = now, time.monotonic(), None
                elif outputs and answer is None and time.monotonic() > changed_s + _QUIET_S:
                    answer = self._check(workload, records, job)
                    if answer.right:
                        return answer
        finally:
            consumer.close()
        msg = f"its results are wrong: {answer}" if outputs else f"no result in {_LONGEST_QUIET_S:.0f} s"
        raise RunError(msg)

    def _check(self, workload: str, records: pa.Table, job: Job) -> Answer:
        found = read_outputs(read_messages(self.servers, job.sink))
        return WORKLOADS[workload].check(records, self.table, found)


class _Arrivals:
    """A process that sends bids at random moments, until it is stopped."""

    def __init__(self, servers: str, topic: str) -> None:
        command = [sys.executable, "-m", "tests.benchmarks._peers.arrivals", servers, topic, str(RATE)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def stop(self) -> int:
        """Stop it; return how many bids it has sent."""
        reported, _ = self._process.communicate("\n")
        return int(reported)


@dataclass(frozen=True, slots=True)
class _Period:
    """The period in which the bids are sent that count."""

    from_us: int
    until_us: int
    cpu_s: float


def _measure(processes: Processes, measured_s: float) -> _Period:
    """Let bids arrive that count. Nothing is sampled meanwhile, nor while their results are under way."""
    processes.stop_watching()
    processes.sample()
    time.sleep(_SETTLE_S)
    before_s = processes.sample(with_memory=False)
    from_us = time.time_ns() // 1_000
    time.sleep(measured_s)
    until_us = time.time_ns() // 1_000
    time.sleep(_SETTLE_S)
    return _Period(from_us, until_us, processes.sample(with_memory=False) - before_s)


def _wait(done: Callable[[], bool], longest_s: float, processes: Processes) -> None:
    end = time.monotonic() + longest_s
    while not done():
        if time.monotonic() > end:
            msg = f"not all results in {longest_s:.0f} s"
            raise RunError(msg)
        processes.require_alive()
        time.sleep(_POLL_S)


def _tail(folder: Path) -> str:
    """The last lines that the processes of a run have written."""
    logs = (log.read_text(errors="replace").strip() for log in sorted(folder.glob("log-*")))
    return " | ".join(log[-_TAIL_CHARACTERS:] for log in logs if log)
