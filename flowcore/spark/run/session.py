"""Sessions: how is Spark started, so that streams run well and nothing is left behind?

The JVM is started by the first session of a process and keeps the options it was started with.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from flowcore.installation.archive import compiler_options, driver_class_path, driver_options
from flowcore.installation.jars import jars
from flowcore.installation.java import find_java
from flowcore.settings import Settings
from flowcore.spark.errors import ignore_lost_jvm

__all__ = ["live_session", "session", "session_config"]

_GIB = 1 << 30
_AVRO_LIMITS = {
    "bytes.maxLength": 16 << 20,
    "string.maxLength": 16 << 20,
    "collectionItems.maxLength": 1 << 20,
}
"""A few bad bytes may claim to be a text of 2 GB, for which the reader would make room before it looks."""
_FORKED = {"spark.python.daemon.module": "flowcore.spark.run.worker_daemon"}
"""Executors elsewhere may get flowcore only when a task starts, which is too late for a daemon."""
_LIVE = {
    # One record that cannot be divided or cast must not stop a stream; it gets a null.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
}


def session_config(
    settings: Settings, *, slots: int | None = None, record_to: Path | None = None
) -> dict[str, str]:
    """The Spark configuration that flowcore's stages and queries need.

    Args:
        settings: The user's settings; keys that begin with ``spark.`` win over everything here.
        slots: Tasks that must run at the same time: a real-time query holds one for each Kafka
            partition and shuffle partition as long as it lives. Counts for a local master only.
        record_to: Write the JVM's class archive there when it ends; see `flowcore.installation.archive`.
    """
    cores = os.cpu_count() or 1
    submitted = _submitted()
    given = {**submitted, **settings.spark}
    limits = [f"-Dorg.apache.avro.limits.{name}={limit}" for name, limit in _AVRO_LIMITS.items()]
    config = {
        "spark.master": f"local[{max(cores, slots or 0)}]",
        "spark.executor.extraJavaOptions": " ".join([*limits, *compiler_options(settings.short_lived)]),
        "spark.ui.enabled": "false",
        # A real-time batch lasts minutes, and only heartbeats tell what it has read: at Spark's 10 s every
        # other look at a run (metrics.interval, 5 s) would show a rate of 0. It is one message of a process.
        "spark.executor.heartbeatInterval": "2s",
        "spark.ui.showConsoleProgress": "false",
        # Between pools: each bounded stage has its own. Within one it is first come, first served.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(max(2 * cores, 4)),
        "spark.sql.files.minPartitionNum": str(cores),
        "spark.sql.warehouse.dir": str(settings.state_dir.absolute() / "warehouse"),
    }
    if not submitted:
        config |= _driver(settings, limits, record_to)
    if given.get("spark.master", "local").startswith("local"):
        loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        return config | loopback | _FORKED | given
    return config | given | _shipped(given)


def _driver(settings: Settings, limits: list[str], record_to: Path | None) -> dict[str, str]:
    """Of the JVM that is about to be started."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    heap_gib = max(1, min(4, memory // _GIB // 4))
    log = settings.state_dir.absolute() / "spark.log"
    options = [
        *driver_options(short_lived=settings.short_lived, record_to=record_to),
        f'"-Dflowcore.log={log}"',
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
    prepare(settings)
    builder = SparkSession.builder.appName(name)
    for key, value in session_config(settings, slots=slots).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        stop(spark)


def prepare(settings: Settings) -> None:
    """What must be true before a JVM is started: Java, worker Python, folder of the log."""
    os.environ["JAVA_HOME"] = str(find_java().home)
    # Workers would otherwise run whatever python3 is on the PATH.
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = settings.spark.get("spark.pyspark.python", sys.executable)
    # They would print a JVM stack trace for every error that flowcore.spark.errors puts into words.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    # It prints a stack trace for a call that Ctrl-C has cut short; what fails is raised as well.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    settings.state_dir.mkdir(parents=True, exist_ok=True)


def stop(spark: SparkSession) -> None:
    """Stop queries, session and JVM; what is already gone is left alone."""
    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark has no public way to end the JVM it started
    if gateway is None:  # another session of this process has ended the JVM that they shared
        return
    try:
        with ignore_lost_jvm():
            for query in spark.streams.active:
                query.stop()
            spark.stop()
    finally:
        gateway.shutdown()
        if gateway.proc is not None:
            gateway.proc.stdin.close()
            gateway.proc.wait(timeout=20)
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - so that a next session starts one


def live_session(spark: SparkSession, settings: Settings) -> SparkSession:
    """A session on the same context with the SQL configuration that streams need."""
    live = spark.newSession()
    live.conf.set("spark.sql.session.timeZone", "UTC")
    live.conf.set("spark.sql.shuffle.partitions", str(settings.shuffle_partitions))
    for key, value in _LIVE.items():
        if key not in settings.spark:
            live.conf.set(key, value)
    return live


def _submitted() -> dict[str, str]:
    """What ``spark-submit`` was told, where it has started this process and the driver's JVM."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    SparkContext._ensure_initialized()  # noqa: SLF001 - only that JVM knows, and a SparkConf does not ask for it
    return dict(SparkConf().getAll())


def _shipped(given: Mapping[str, str]) -> dict[str, str]:
    """The connector's jars, which executors lack unless it is said where they have them."""
    if "spark.executor.extraClassPath" in given:
        return {}
    shipped = [*map(str, jars("connector")), *filter(None, given.get("spark.jars", "").split(","))]
    return {"spark.jars": ",".join(shipped)}
