"""Start and stop Spark sessions with the configuration that stages and queries need.

The first session of a process starts the JVM, which keeps the options of its start.
"""

import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import py4j
import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from flowcore.installation.archive import compiler_options, driver_class_path, driver_options
from flowcore.installation.jars import jars, jars_folder
from flowcore.installation.java import find_java
from flowcore.settings import Settings
from flowcore.spark.context import spark_log
from flowcore.spark.run.fork_client import SERVER
from flowcore.spark.run.jvm import is_submitted, redaction, require_encryption, start_jvm
from flowcore.spark.run.private import prepare_state_folder
from flowcore.spark.run.scratch import make_scratch, remove_scratch

__all__ = ["live_session", "prepare_process", "session", "session_config", "start_session", "stop_session"]

_GIB = 1 << 30
_AVRO_LIMITS = {
    "bytes.maxLength": 16 << 20,
    "string.maxLength": 16 << 20,
    "collectionItems.maxLength": 1 << 20,
}
"""A few bad bytes may declare a text of 2 GB, for which the reader would allocate memory first."""
_FORKED = {"spark.python.daemon.module": "flowcore.spark.run.worker_daemon"}
"""Remote executors may receive flowcore only when a task starts, which is too late for a daemon."""
_JVM_ENDS_S = 20.0
_LONGEST_SOCKET = 100
_SCRIPT = Path(__file__).with_name("worker_python.sh")
_RETAINED = {
    # Without its UI, too, Spark keeps the plan and the metrics of the last 1,000 executions: several for
    # a batch. What still runs is kept in any case (`flowcore.spark.run.spark_query`).
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "100",
    "spark.ui.retainedTasks": "1000",
}
_LIVE = {
    # A failing division or cast must not stop a stream; its result is null.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # Spark's default starts eight processes for each file, to look at links. Both check, then rename.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
}


_UNANSWERED_HEARTBEATS = {"spark.executor.heartbeat.maxFailures": "10"}
"""Executors end when their driver has not answered for 20 s, before another driver may begin to write."""


def session_config(
    settings: Settings,
    *,
    slots: int | None = None,
    record_to: Path | None = None,
    scratch: Path | None = None,
) -> dict[str, str]:
    """The Spark configuration that flowcore's stages and queries need.

    Args:
        settings: The user's settings; keys that begin with ``spark.`` override all others.
        slots: Tasks that must run at the same time; used for a local master only. A real-time query holds one
            for each Kafka partition and shuffle partition while it runs.
        record_to: Write the JVM's class archive to this file when it ends; see
            `flowcore.installation.archive`.
        scratch: Folder for the temporary files of the JVM, see `prepare_process`; by default that of Java.
    """
    cores = os.cpu_count() or 1
    submitted: dict[str, str] = {}
    if is_submitted():
        SparkContext._ensure_initialized()  # noqa: SLF001 - a SparkConf reads that JVM only if it is connected
        submitted = dict(SparkConf().getAll())
    given = {**submitted, **settings.spark}
    limits = [f"-Dorg.apache.avro.limits.{name}={limit}" for name, limit in _AVRO_LIMITS.items()]
    if settings.kafka_token_url:  # Kafka's client sends the client secret nowhere else then
        limits.append(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={settings.kafka_token_url}")
    config = {
        "spark.master": f"local[{max(cores, slots or 0)}]",
        "spark.executor.extraJavaOptions": " ".join([*limits, *compiler_options(settings.short_lived)]),
        "spark.ui.enabled": "false",
        "spark.ui.killEnabled": "false",  # else a link in any web page can kill a stage
        **_RETAINED,
        # A real-time batch lasts minutes, and only heartbeats report what it has read. At Spark's 10 s every
        # other report of a run (metrics.interval, 5 s) would show a rate of 0.
        "spark.executor.heartbeatInterval": "2s",
        "spark.ui.showConsoleProgress": "false",
        # Between pools, since each bounded stage has its own. Within a pool it is first in, first out.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(max(2 * cores, 4)),
        "spark.sql.files.minPartitionNum": str(cores),
        "spark.hadoop.fs.permissions.umask-mode": f"{settings.umask:03o}",
        "spark.sql.warehouse.dir": str(settings.state_dir.absolute() / "warehouse"),
    }
    if not submitted:
        config |= _driver(settings, limits, record_to, scratch)
    if given.get("spark.master", "local").startswith("local"):
        loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # The JVM listens on loopback, where any user of the machine could send it tasks; it makes the secret.
        return config | loopback | {"spark.authenticate": "true"} | _FORKED | given | redaction(given)
    require_encryption(given, settings)
    if submitted and jars_folder().is_dir():  # as in the image, whose driver and executors load these
        jars("connector")
    return config | _UNANSWERED_HEARTBEATS | given | _shipped(given) | redaction(given)


def _driver(
    settings: Settings, limits: list[str], record_to: Path | None, scratch: Path | None
) -> dict[str, str]:
    """Options of the JVM that is about to be started."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    heap_gib = max(1, min(4, memory // _GIB // 4))
    log = spark_log(settings)
    options = [
        *driver_options(short_lived=settings.short_lived, record_to=record_to),
        f'"-Dflowcore.log={log}"',
        *([f'"-Djava.io.tmpdir={scratch}"'] if scratch else []),
        *limits,
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
    ]
    return {
        "spark.driver.memory": f"{heap_gib}g",
        "spark.driver.extraClassPath": driver_class_path(),
        "spark.driver.extraJavaOptions": " ".join(options),
    }


@contextmanager
def session(settings: Settings, name: str, *, slots: int | None = None) -> Iterator[SparkSession]:
    """A Spark session that is stopped at the end, with its JVM."""
    spark = start_session(settings, name, slots=slots)
    try:
        yield spark
    finally:
        stop_session(spark)


def start_session(
    settings: Settings, name: str, *, slots: int | None = None, record_to: Path | None = None
) -> SparkSession:
    """Start a JVM with a session; for the arguments see `session_config`."""
    scratch = prepare_process(settings)
    builder = SparkSession.builder.appName(name)
    config = session_config(settings, slots=slots, record_to=record_to, scratch=scratch)
    for key, value in config.items():
        builder = builder.config(key, value)
    start_jvm(config, settings.umask)
    return builder.getOrCreate()


def prepare_process(settings: Settings) -> Path:
    """Set up this process before it starts a JVM: Java, the workers' Python, loggers, the log's folder.

    Returns:
        A folder for the temporary files of the JVM, which `stop_session` removes.
    """
    os.environ["JAVA_HOME"] = str(find_java().home)
    # Otherwise workers run the python3 on the PATH.
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = settings.spark.get("spark.pyspark.python", _worker_python(settings))
    # They print a JVM stack trace for every error that flowcore.spark.errors translates.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    # It prints a stack trace for a call that Ctrl-C interrupts; failures are raised as well.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_from_py4j)
    prepare_state_folder(settings.state_dir)
    scratch = make_scratch()
    socket = str(scratch / "fork")
    # A socket's path has at most 107 bytes. Without a server, workers are new processes.
    os.environ[SERVER] = socket if len(os.fsencode(socket)) < _LONGEST_SOCKET else ""
    return scratch


def _is_not_from_py4j(record: logging.LogRecord) -> bool:
    """Py4J also reports calls that were interrupted to the root logger."""
    return record.module not in ("java_gateway", "clientserver")


def _worker_python(settings: Settings) -> str:
    """The driver's Python; on this machine, by a script that starts it in half the time."""
    # A JVM of spark-submit has no environment of ours.
    is_local = settings.spark.get("spark.master", "local").startswith("local") and not is_submitted()
    # A downloaded Spark has its Python packages in archives only.
    is_installed = all(Path(package.__file__ or "").is_file() for package in (pyspark, py4j))
    return str(_SCRIPT) if is_local and is_installed and os.access(_SCRIPT, os.X_OK) else sys.executable


def stop_session(spark: SparkSession) -> None:
    """Stop queries, session and JVM, as far as they still run."""
    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark cannot end the JVM otherwise
    if gateway is None:  # another session of this process has ended their shared JVM
        return
    try:
        # A signal for the whole process group, as systemd and a terminal send it, ends the JVM meanwhile.
        with suppress(Py4JError, ConnectionError, PySparkException):
            for query in spark.streams.active:
                query.stop()
        # Also then: PySpark would give the next session of this process the one that has ended.
        with suppress(Py4JError, ConnectionError, PySparkException), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            spark.stop()
    finally:
        gateway.shutdown()
        if gateway.proc is not None:
            gateway.proc.stdin.close()
            try:
                gateway.proc.wait(timeout=_JVM_ENDS_S)
            except subprocess.TimeoutExpired:  # it would replace the error that ends the run
                gateway.proc.kill()
                gateway.proc.wait()
            remove_scratch()
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - the next session starts one


def live_session(spark: SparkSession, settings: Settings) -> SparkSession:
    """A session on the same context, with the SQL configuration for streams."""
    live = spark.newSession()
    live.conf.set("spark.sql.session.timeZone", "UTC")
    live.conf.set("spark.sql.shuffle.partitions", str(settings.shuffle_partitions))
    for key, value in _LIVE.items():
        if key not in settings.spark:
            live.conf.set(key, value)
    return live


def _shipped(given: Mapping[str, str]) -> dict[str, str]:
    """The connector's jars, which are sent to executors unless these have them."""
    if "spark.executor.extraClassPath" in given:
        return {}
    shipped = [*map(str, jars("connector")), *filter(None, given.get("spark.jars", "").split(","))]
    return {"spark.jars": ",".join(shipped)}
