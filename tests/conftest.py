"""Fixtures shared by all test folders: one Spark session per run, started when first needed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings as hypothesis
from hypothesis.database import DirectoryBasedExampleDatabase

from flowcore.installation.cache import cache_folder
from flowcore.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A shell's background job ignores SIGINT, and so would its child processes.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A terminated run ends its child processes, as Ctrl-C does.
signal.signal(signal.SIGTERM, signal.default_int_handler)
# No test depends on time, so a busy machine fails no example. Failing examples are kept across checkouts.
hypothesis.register_profile(
    "flowcore",
    deadline=None,
    print_blob=True,
    database=DirectoryBasedExampleDatabase(cache_folder() / "hypothesis"),
)
# Branches are found by few examples, and each costs more while coverage is measured.
hypothesis.register_profile("coverage", hypothesis.get_profile("flowcore"), max_examples=10)
hypothesis.load_profile("flowcore")

_SLOTS = 6  # a real-time query occupies one per partition


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session as flowcore starts it, with a JVM that compiles quickly."""
    from flowcore.spark.operators.key_groups import WORKER_POOL  # noqa: PLC0415
    from flowcore.spark.run.session import session  # noqa: PLC0415 - tests without Spark do not import it

    settings = Settings.of(
        {
            "state.dir": tmp_path_factory.mktemp("spark"),
            "execution.short-lived": "true",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.files.minPartitionNum": "1",
            # An idle query asks the broker for offsets so often; Spark's 10 ms take a quarter of a core.
            "spark.sql.streaming.pollingDelay": "50ms",
        },
        environment={},
    )
    with session(settings, "tests", slots=_SLOTS) as started:
        # All functions of all tests share a pool of Python workers, which takes seconds to start.
        started.sparkContext.environment[WORKER_POOL] = "tests"
        yield started
