"""Contenders of the comparison: which commands start each of them, as its users would.

A program gets what it needs in environment variables, the same for all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flowcore.installation.archive import driver_class_path
from flowcore.installation.java import find_java
from flowcore.kafka.broker import free_port
from flowcore.settings import Settings
from tests.benchmarks._peers.environments import install_rival
from tests.benchmarks._pyflink.installation import connector
from tests.benchmarks._pyflink.installation import interpreter as pyflink

__all__ = ["CONTENDERS", "OURS", "RIVALS", "Contender", "Job", "Launch"]

PROGRAMS = Path(__file__).parent / "programs"
PROCESSES = 2
"""Of an engine that uses one processor in a process; topics have as many partitions."""
OURS = "flowcore"
HEAP = "4g"
"""Of each JVM."""
BATCH_RECORDS = Settings.of(environment={}).max_batch_records
"""The most records of a micro-batch of Spark, with flowcore and without."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a contender runs.

    Attributes:
        folder: An empty folder for state.
        checkpoint_s: Seconds between two checkpoints or commits.
        linger_ms: How long a Kafka client waits for more records; 0 also asks for low latency elsewhere.
    """

    workload: str
    servers: str
    source: str
    sink: str
    table: Path
    folder: Path
    checkpoint_s: int
    linger_ms: int

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of the programs."""
        return {
            "SERVERS": self.servers,
            "INPUT": self.source,
            "OUTPUT": self.sink,
            "TABLE": str(self.table),
            "FOLDER": str(self.folder),
            "CHECKPOINT_S": str(self.checkpoint_s),
            "LINGER_MS": str(self.linger_ms),
            "HEAP": HEAP,
            "BATCH_RECORDS": str(BATCH_RECORDS),
        }


@dataclass(frozen=True, slots=True)
class Launch:
    """A contender that is ready to be started.

    Attributes:
        commands: The commands of its processes.
        environment: The environment variables of all of them.
        folder: For their logs.
    """

    commands: Sequence[Sequence[str | Path]]
    environment: Mapping[str, str]
    folder: Path

    def start(self) -> Iterator[subprocess.Popen[bytes]]:
        """Start its processes, one with each step of the iterator."""
        for number, command in enumerate(self.commands):
            with (self.folder / f"log-{number}").open("wb") as log:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment,
                    cwd=PROGRAMS, start_new_session=True,
                )  # fmt: skip
            yield process


@dataclass(frozen=True, slots=True)
class Contender:
    """An engine that takes part.

    Attributes:
        install: Installs it if it is missing; returns its Python.
        commands: The commands of its processes, for that Python. What they need is prepared meanwhile.
        variables: Further environment variables.
        settings: How it is tuned, for readers of the report.
        wrong: The workloads whose results it is known to get wrong, and how. It runs them only if it is asked
            for by name.
    """

    name: str
    install: Callable[[], Path]
    commands: Callable[[Path, Job], Sequence[Sequence[str | Path]]]
    settings: str
    variables: Callable[[Job], Mapping[str, str]] = lambda _job: {}
    wrong: Mapping[str, str] = field(default_factory=dict)

    def prepare(self, python: Path, job: Job) -> Launch:
        """Do all that is done once before a start, and is no part of it."""
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK"))},
            **job.variables,
            **self.variables(job),
        }
        return Launch(self.commands(python, job), environment, job.folder)


def _flowcore(python: Path, job: Job) -> list[list[str | Path]]:
    settings = {
        "kafka.bootstrap.servers": job.servers,
        "state.dir": job.folder,
        "execution.realtime.batch-duration": f"{job.checkpoint_s} s",
        "execution.max-records-per-batch": BATCH_RECORDS,
        "spark.driver.memory": HEAP,
    }
    given: list[str | Path] = [
        word for name, value in settings.items() for word in ("--set", f"{name}={value}")
    ]
    return [
        [
            python,
            "-c",
            "from flowcore.cli.main import main; main()",
            "run",
            f"flowcore_flows:{job.workload}",
            *given,
        ]
    ]


def _quix(python: Path, job: Job) -> list[list[str | Path]]:
    return [[python, "quix_streams.py", job.workload] for _ in range(PROCESSES)]


def _bytewax(python: Path, job: Job) -> list[list[str | Path]]:
    recovery = job.folder / "recovery"
    recovery.mkdir()
    subprocess.run([python, "-m", "bytewax.recovery", recovery, str(PROCESSES)], check=True, env={})
    addresses = ";".join(f"127.0.0.1:{free_port()}" for _ in range(PROCESSES))
    options: list[str | Path] = ["-a", addresses, "-r", recovery, "-s", str(job.checkpoint_s), "-b", "0"]
    return [
        [python, "-m", "bytewax.run", f"bytewax_flows:{job.workload}", "-i", str(number), *options]
        for number in range(PROCESSES)
    ]


def _pyflink_variables(job: Job) -> dict[str, str]:
    return {
        "JAVA_HOME": str(find_java().home),
        "JVM_ARGS": f"-Xmx{HEAP}",
        "CONNECTOR": str(connector()),
        "FLINK_LOG_DIR": str(job.folder),
    }


def _spark_variables(_job: Job) -> dict[str, str]:
    return {
        "JAVA_HOME": str(find_java().home),
        "CONNECTOR": driver_class_path(),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


CONTENDERS = {
    each.name: each
    for each in (
        Contender(
            OURS,
            lambda: Path(sys.executable),
            _flowcore,
            f"flowcore run, its own settings: batches of {BATCH_RECORDS:,}; a heap of {HEAP}",
            lambda _job: {"PYTHONPATH": str(Path(__file__).parents[3])},
        ),
        Contender(
            "quix",
            lambda: install_rival("quix", ["quixstreams==3.28.1"]),
            _quix,
            f"{PROCESSES} processes in a consumer group, changelog topics",
        ),
        Contender(
            "bytewax",
            lambda: install_rival("bytewax", ["bytewax[kafka]==0.21.1", "orjson==3.11.4"]),
            _bytewax,
            f"{PROCESSES} processes in a cluster, batches of 5,000, recovery partitions, orjson",
        ),
        Contender(
            "pyflink-sql",
            pyflink,
            lambda python, job: [[python, "pyflink_sql.py", job.workload]],
            f"a mini cluster, mini-batches (not for latency), reuse of objects, a heap of {HEAP}",
            _pyflink_variables,
        ),
        Contender(
            "pathway",
            lambda: install_rival("pathway", ["pathway==0.33.0"]),
            lambda python, job: [[python, "pathway_pipeline.py", job.workload]],
            f"{PROCESSES} threads, commits of 500 ms (5 for latency), snapshots on disk",
            lambda _job: {"PATHWAY_THREADS": str(PROCESSES)},
            {"windows": "windows of two partitions are missing (4,419 of 8,767 at 20,000 records)"},
        ),
        Contender(
            "spark",
            lambda: Path(sys.executable),
            lambda python, job: [[python, "spark_streaming.py", job.workload]],
            f"the same Spark and jars, batches of {BATCH_RECORDS:,}, a heap of {HEAP}, RocksDB; real-time "
            "mode for latency",
            _spark_variables,
        ),
    )
}
RIVALS = tuple(name for name in CONTENDERS if name != OURS)
