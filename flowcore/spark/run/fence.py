"""Fence: the JVM stops its queries when their leases were not renewed in time.

Records leave the JVM, and leases are renewed in Python. If Python is stopped, or cannot reach the folder of
the leases, another process takes them over after `STALE_S` and begins to write. So a thread of the JVM has a
deadline, which each renewal extends, and stops the queries when it has passed.
"""

from __future__ import annotations

import math
from typing import Any, Self
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from flowcore.errors import ExpiredLeaseError
from flowcore.spark.checkpoint.lease import STALE_S, running_s
from flowcore.spark.errors import ignore_lost_jvm

__all__ = ["Fence"]

_MARGIN_S = 5.0
"""The time that stopping may take: queries are stopped this long before another process may begin."""
_SOURCE = """
public class Fence extends Thread {
  private final java.util.concurrent.ConcurrentHashMap queries =
      new java.util.concurrent.ConcurrentHashMap();
  private volatile long deadline = now() + Long.MAX_VALUE / 2;
  private volatile boolean closed = false;
  private volatile boolean expired = false;

  public Fence() { super("flowcore-fence"); setDaemon(true); }
  public void extend(long nanos) { deadline = nanos; }
  public void watch(String name, org.apache.spark.sql.streaming.StreamingQuery query) {
    queries.put(name, query);
    if (expired) end(query);
  }
  public boolean isExpired() { return expired; }
  public void close() { closed = true; }

  public static long now() {  // System.nanoTime stands still while the machine is suspended
    try {
      java.io.BufferedReader uptime = new java.io.BufferedReader(new java.io.FileReader("/proc/uptime"));
      try {
        String line = uptime.readLine();
        return (long) (Double.parseDouble(line.substring(0, line.indexOf(' '))) * 1e9);
      } finally { uptime.close(); }
    } catch (Exception e) { return System.nanoTime(); }
  }

  public void run() {
    try {
      while (!closed && now() - deadline < 0) Thread.sleep(100);
    } catch (InterruptedException e) { return; }
    if (closed) return;
    expired = true;  // first: a query that is added meanwhile is ended here, or by watch
    for (Object each : queries.values()) end((org.apache.spark.sql.streaming.StreamingQuery) each);
  }

  private void end(final org.apache.spark.sql.streaming.StreamingQuery query) {
    new Thread("flowcore-fence-stop") {
      public void run() {
        try { query.stop(); } catch (Exception e) { }
      }
    }.start();
  }
}
"""
_classes: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""The compiled class, by connection to a JVM: Py4J finds methods by the name of a class."""


class Fence:
    """The deadline of a run's queries in the JVM; a context manager with a thread there."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001 - PySpark shows no Java classes
        gateway = spark.sparkContext._gateway  # noqa: SLF001
        if gateway not in _classes:
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
            compiler.cook(_SOURCE)
            _classes[gateway] = compiler.getClassLoader().loadClass("Fence")
        self._thread = _classes[gateway].newInstance()
        # The JVM's clock is read first, so that a deadline is early by the time of the call, and not late.
        self._until_s = math.inf
        self._ahead_ns = self._thread.now() - int(running_s() * 1e9)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with ignore_lost_jvm():
            self._thread.close()

    def watch(self, name: str, running: StreamingQuery) -> None:
        """Stop this start of a query, and not an earlier one, when the deadline has passed, or at once."""
        self._thread.watch(name, running._jsq)  # noqa: SLF001

    def extend(self, renewed_s: float) -> None:
        """Extend the deadline; the leases were renewed at or after this time of `running_s`."""
        self._until_s = renewed_s + STALE_S - _MARGIN_S
        deadline_ns = int(self._until_s * 1e9) + self._ahead_ns
        with ignore_lost_jvm():
            self._thread.extend(deadline_ns)

    def check(self) -> None:
        """Check that the deadline has not passed.

        Raises:
            ExpiredLeaseError: The deadline has passed, and the queries are stopped.
        """
        expired = running_s() >= self._until_s  # the thread of the JVM may not have seen it yet
        with ignore_lost_jvm():
            expired = self._thread.isExpired() or expired
        if expired:
            msg = (
                f"the leases of this run were not renewed for {STALE_S - _MARGIN_S:g} s: another process may "
                "take them, so its queries were stopped; nothing is lost: start it again, and check that the "
                "process was not stopped and can write to the folder of its checkpoints"
            )
            raise ExpiredLeaseError(msg)
