"""Memory, disk and connections of a stream that waits for its bounded stage; the target is zero.

The bounded stage runs twice, each time in a new process: alone, and as the first stage of a flow whose topic
holds records. While the stage runs and while its output is committed, each process collects garbage and
measures itself; the higher figure counts. The difference between the whole flow and the stage alone is the
cost of the waiting stream. Then the flow runs to its end, and its output is checked.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer

from flowcore import Flow, KafkaTopic, Parquet
from flowcore.errors import RunError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import end_offsets, ensure_topics
from flowcore.settings import Settings
from flowcore.spark.run.bounded_stages import StageProgress, StageState
from flowcore.spark.run.flow import SilentListener, run_flow
from flowcore.spark.run.live_runs import LiveRuns
from pipelines.benchmark import this_commit, this_machine

KEYS = 1 << 10
STREAMING = re.compile(
    r"org\.apache\.(kafka\.|spark\.sql\.kafka010\.)|org\.rocksdb\."
    r"|org\.apache\.spark\.sql\.execution\.streaming\..*(Execution|Query|StateStore|MetadataLog)"
)


@click.command()
@click.option("--records", default=1_000_000, show_default=True, help="Rows of the bounded input.")
@click.option("--pending", default=100_000, show_default=True, help="Records that wait in the topic.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--look", nargs=3, hidden=True, help="Run as one of the two processes: which, folder, broker.")
def command(records: int, pending: int, look: tuple[str, str, str] | None, *, as_json: bool) -> None:
    """Memory, disk and connections of a stream that waits for its bounded stage."""
    if look is not None:
        click.echo(json.dumps(_look(look[0], Path(look[1]), look[2])))
        return
    with (
        tempfile.TemporaryDirectory(prefix="flowcore-bench-", ignore_cleanup_errors=True) as folder,
        EmbeddedBroker() as broker,
    ):
        report = _measure(Path(folder), broker.bootstrap_servers, records, pending)
    if as_json:
        click.echo(json.dumps(report))
        return
    click.echo("\n".join(f"{name}: {value}" for name, value in report.items()))


def _measure(folder: Path, servers: str, records: int, pending: int) -> dict[str, Any]:
    (folder / "past").mkdir()
    keys = pa.array(range(records), pa.int64())
    pq.write_table(
        pa.table({"key": pa.compute.bit_wise_and(keys, KEYS - 1), "value": keys}), folder / "past/p.parquet"
    )
    ensure_topics(servers, {"live": 2})
    producer = Producer({"bootstrap.servers": servers})
    for number in range(pending):
        producer.produce("live", json.dumps({"key": number % KEYS}).encode(), partition=number % 2)
        producer.poll(0)
    producer.flush()
    alone, whole = (_child(which, folder, servers) for which in ("alone", "whole"))
    found = sum(end_offsets(servers, "joined").values())
    if found != pending:
        msg = f"{found} of {pending} records were joined: the output is wrong, so its cost is meaningless"
        raise RunError(msg)
    return {
        "name": "waiting",
        "workload": f"a bounded aggregate of {records:,} rows while {pending:,} records wait in a topic",
        "machine": this_machine(),
        "commit": this_commit(),
        "verified": f"{found:,} records joined by the same run afterwards",
        **{f"waiting_{name}": whole[name] - alone[name] for name in ("memory_bytes", "disk_bytes")},
        **{f"waiting_{name}": whole[name] for name in ("queries", "connections", "checkpoint_files")},
        "alone": alone,
        "whole": whole,
    }


def _child(which: str, folder: Path, servers: str) -> dict[str, int]:
    command = [
        sys.executable,
        "-m",
        "flowcore.cli.main",
        "bench",
        "waiting",
        "--look",
        which,
        str(folder),
        servers,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"the process {which!r} failed: {done.stderr}"
        raise RunError(msg)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def _look(which: str, folder: Path, servers: str) -> dict[str, int]:
    settings = Settings.of(
        {"kafka.bootstrap.servers": servers, "data.dir": folder, "state.dir": folder / f"state-{which}"},
        {"spark.local.dir": str(folder / f"local-{which}"), "spark.driver.memory": "1g"},
    )
    listener = _SelfMeasurement(settings, folder / f"local-{which}", int(servers.rpartition(":")[2]))
    run_flow(_flow(alone=which == "alone"), settings, mode="slice", listener=listener)
    return listener.found


def _flow(*, alone: bool) -> Flow:
    flow = Flow("waiting")
    past = flow.read("past", Parquet("past", schema="key BIGINT, value BIGINT"))
    totals = past.aggregate(by="key", total="sum(value)", name="totals")
    if alone:
        totals.write("table", Parquet("table"))
        return flow
    live = flow.read("live", KafkaTopic("live", schema="key BIGINT")).join(totals, on="key")
    live.write("joined", KafkaTopic("joined"))
    live.aggregate(by="key", number="count(*)").write("numbers", KafkaTopic("numbers"))
    return flow


class _SelfMeasurement(SilentListener):
    """Measures its own process while the stage runs and finishes; nothing else can start meanwhile."""

    def __init__(self, settings: Settings, local: Path, port: int) -> None:
        self._settings = settings
        self._local = local
        self._port = port
        self.found: dict[str, int] = {}

    def stage_changed(self, progress: StageProgress) -> None:
        if progress.state in (StageState.RUNNING, StageState.FINISHING):
            now = self._measure()
            self.found = {name: max(value, self.found.get(name, 0)) for name, value in now.items()}

    def live(self, run: LiveRuns) -> None:
        # The measured objects must exist when the stream runs; otherwise measuring none would prove nothing.
        while run.active and not all(query.batches for query in run.progress()):
            run.wait(0.05)
        self.found |= {f"running_{name}": value for name, value in self._measure().items()}
        run.wait()

    def _measure(self) -> dict[str, int]:
        from pyspark import SparkContext  # noqa: PLC0415 - only the children start Spark

        gateway: Any = SparkContext._gateway
        histogram = _live_objects(gateway)
        flow = self._settings.state_dir / "waiting"
        files = [path for path in flow.rglob("*") if path.is_file() and "results" not in path.parts]
        return {
            "memory_bytes": sum(size for name, size in histogram.items() if STREAMING.match(name)),
            "heap_bytes": sum(histogram.values()),
            "peak_resident_bytes": _peak_resident(gateway.proc.pid),
            "disk_bytes": sum(path.stat().st_size for path in (*files, *_streaming_files(self._local))),
            "queries": sum(name.endswith("BatchExecution") for name in histogram),
            "connections": sum(_connections(pid, self._port) for pid in (gateway.proc.pid, os.getpid())),
            "checkpoint_files": len(files),
        }


def _live_objects(gateway: Any) -> dict[str, int]:
    """Bytes of the JVM's objects by class, after a garbage collection."""
    jvm = gateway.jvm
    kinds = "javax.management.ObjectName", "java.lang.String", "[Ljava.lang.Object;", "[Ljava.lang.String;"
    signature = _array(gateway, jvm.java.lang.Class, *map(jvm.java.lang.Class.forName, kinds))
    # The server's class is not public, so its method is looked up in the interface.
    invoke = jvm.java.lang.Class.forName("javax.management.MBeanServer").getMethod("invoke", signature)
    command = jvm.javax.management.ObjectName("com.sun.management:type=DiagnosticCommand")
    options = _array(gateway, jvm.java.lang.Object, _array(gateway, jvm.java.lang.String))
    types = _array(gateway, jvm.java.lang.String, "[Ljava.lang.String;")
    arguments = _array(gateway, jvm.java.lang.Object, command, "gcClassHistogram", options, types)
    server = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
    rows = re.findall(r"^\s*\d+:\s+\d+\s+(\d+)\s+(\S+)", invoke.invoke(server, arguments), re.MULTILINE)
    return {kind: int(size) for size, kind in rows}


def _array(gateway: Any, kind: Any, *values: Any) -> Any:
    made = gateway.new_array(kind, len(values))
    for number, value in enumerate(values):
        made[number] = value
    return made


def _streaming_files(local: Path) -> Iterator[Path]:
    """Files of state stores and streams in Spark's local folders."""
    if local.exists():
        yield from (path for path in local.rglob("*") if path.is_file() and "blockmgr" not in str(path))


def _peak_resident(pid: int) -> int:
    (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kib) << 10


def _connections(pid: int, port: int) -> int:
    """Open TCP connections of a process to a port."""
    found = psutil.Process(pid).net_connections("tcp")
    return sum(each.status == psutil.CONN_ESTABLISHED and each.raddr.port == port for each in found)
