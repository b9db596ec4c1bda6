"""What Spark's log shows of messages and errors that quote data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flowcore.spark.run import session

pytestmark = pytest.mark.spark


def test_log_shows_neither_what_a_terminal_obeys_nor_forged_entries(spark: SparkSession) -> None:
    """Also not in the error's trace, which is there once, line by line."""
    jvm: Any = spark._jvm
    log4j = jvm.org.apache.logging.log4j
    settings = jvm.java.util.Properties()
    settings.load(jvm.java.io.FileReader(str(Path(session.__file__).with_name("log4j2.properties"))))
    layout = (
        log4j.core.layout.PatternLayout.newBuilder()
        .withPattern(settings.getProperty("appender.file.layout.pattern"))
        .withAlwaysWriteExceptions(
            settings.getProperty("appender.file.layout.alwaysWriteExceptions") != "false"
        )
        .build()
    )
    hostile = "a\x1b[2Jb\x9b\u202e\n2026-01-01 00:00:00.000 INFO Forged: c"
    event = (
        log4j.core.impl.Log4jLogEvent.newBuilder()
        .setLoggerName("a.Task")
        .setLevel(log4j.Level.WARN)
        .setMessage(log4j.message.SimpleMessage(hostile))
        .setThrown(jvm.java.lang.RuntimeException(hostile))
        .build()
    )

    first, *further = str(layout.toSerializable(event)).splitlines()

    assert first.endswith(" WARN Task: a?[2Jb??")
    assert further[:3] == [
        "  2026-01-01 00:00:00.000 INFO Forged: c", "  java.lang.RuntimeException: a?[2Jb??",
        "  2026-01-01 00:00:00.000 INFO Forged: c",
    ]  # fmt: skip
    assert further[3].startswith("  \tat ")
    assert all(line.startswith("  ") for line in further)
    assert sum("RuntimeException" in line for line in further) == 1
