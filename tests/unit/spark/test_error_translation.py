"""Errors of Spark become errors of flowcore that say whether another start can help."""

from __future__ import annotations

import errno
import os

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException, StreamingQueryException

from flowcore.errors import (
    BrokerAccessError,
    DamagedCheckpointError,
    DiskFullError,
    FlowcoreError,
    OutageError,
    RunError,
    UnreachableBrokerError,
)
from flowcore.kafka.transactions import EXPIRED, FENCED
from flowcore.spark.errors import (
    find_mishap,
    find_new_schema,
    find_outage,
    is_too_large,
    translate_disk_errors,
    translate_run_errors,
)

ISSUER_AWAY = "An internal error occurred while retrieving token from callback handler"
STATE = "file:/data/f/checkpoints/bids/state/0/1/7.changelog"
CASES: list[tuple[str, type[FlowcoreError]]] = [
    ("org.apache.kafka.common.errors.TimeoutException: Expiring 3 record(s)", UnreachableBrokerError),
    ("org.apache.kafka.common.errors.DisconnectException", UnreachableBrokerError),
    ("java.util.concurrent.TimeoutException: Cannot fetch record for offset 5 in 120000 milliseconds",
     UnreachableBrokerError),
    ("ConfigException: No resolvable bootstrap urls given in bootstrap.servers", UnreachableBrokerError),
    ("java.io.IOException: No space left on device", DiskFullError),
    ("java.io.IOException: Disk quota exceeded", DiskFullError),
    ("java.io.FileNotFoundException: /state/offsets/.7.tmp (Read-only file system)", DiskFullError),
    ("org.rocksdb.RocksDBException: While appending to file: /7.log: Input/output error", DiskFullError),
    ("java.io.IOException: Stale file handle", DiskFullError),
    (f"ChecksumException: Checksum error: {STATE} at 0 exp: 1 got: 2", DamagedCheckpointError),
    (f"[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error: EOF {STATE}", DamagedCheckpointError),
    ("IllegalStateException: Incomplete log file in the offset commit log", DamagedCheckpointError),
    ("[CANNOT_LOAD_STATE_STORE.ROCKSDB_STORE_PROVIDER_OUT_OF_MEMORY] no memory", RunError),
    ("Cannot fetch record for offset 5 (GroupId: g): data may have been lost", RunError),
    ("org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized", BrokerAccessError),
    (f"KafkaException: javax.security.auth.login.LoginException: {ISSUER_AWAY}", UnreachableBrokerError),
    ("java.lang.ArithmeticException: / by zero", RunError),
    ("Record at topic bids partition 3 offset 12 has timestamp value -90 that overflows when", RunError),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), CASES, ids=[text[:40] for text, _ in CASES])
def test_cause_of_a_failure_decides_its_type(text: str, expected: type[FlowcoreError]) -> None:
    """An outage is found as such; all others end the run."""
    error = StreamingQueryException(text)

    with pytest.raises(FlowcoreError) as raised, translate_run_errors("query 'bids'", "spark.log"):
        raise error

    assert type(raised.value) is expected
    assert str(raised.value).startswith("query 'bids' failed: ")
    outage = find_outage("query 'bids'", error, "spark.log")
    assert (outage is not None) == issubclass(expected, OutageError)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(ProduceRequest for out [0] with 6 message(s) failed: Broker: Message size too large)", True),
        ("org.apache.kafka.common.errors.RecordTooLargeException: The request included a message", True),
        ("java.lang.ArithmeticException: / by zero", False),
    ],
)
def test_refused_size_is_found(text: str, expected: bool) -> None:
    """The limits of the topics are read again then."""
    assert is_too_large(StreamingQueryException(text)) is expected


def test_cause_of_a_cause_decides_the_type() -> None:
    """The error of a query says only that state was not loaded; its cause says why."""
    error = StreamingQueryException("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred")
    cause = PySparkException("[CANNOT_LOAD_STATE_STORE.FAILED_TO_GET_CHANGELOG_WRITER] An error occurred")
    setattr(error, "_cause", cause)  # noqa: B010 - PySpark's own errors have it
    setattr(cause, "_cause", PySparkException(f"FileNotFoundException: {STATE} (Read-only file system)"))  # noqa: B010

    assert isinstance(find_outage("query 'bids'", error, "spark.log"), DiskFullError)


def test_damaged_file_is_named() -> None:
    """The message has its path, and not that of Spark's log only."""
    text = f"[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred. {STATE}: EOF"

    with pytest.raises(DamagedCheckpointError) as raised, translate_run_errors("query", "spark.log"):
        raise StreamingQueryException(text)

    assert f"the file {STATE.removeprefix('file:')} of its checkpoint" in str(raised.value)


@pytest.mark.parametrize(
    "number",
    [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE],
    ids=errno.errorcode.__getitem__,
)
def test_full_disk_under_a_file_of_ours_is_an_outage(number: int) -> None:
    """Other errors of the system are not."""
    full = OSError(number, os.strerror(number), "/data/f/plan.json")
    with pytest.raises(DiskFullError, match="make room"), translate_run_errors("flow 'f'", "spark.log"):
        raise full
    assert isinstance(find_outage("query 'bids'", full, "spark.log"), DiskFullError)

    with pytest.raises(PermissionError), translate_run_errors("flow 'f'", "spark.log"):
        raise PermissionError(errno.EACCES, "no")


def test_outage_that_a_sink_has_found_is_one() -> None:
    """A sink in Python raises errors of flowcore, too; the others end the run."""
    away = UnreachableBrokerError("the broker did not answer")

    assert find_outage("query 'bids'", away, "spark.log") is away
    assert find_outage("query 'bids'", RunError("no"), "spark.log") is None
    assert find_outage("query 'bids'", ValueError("no"), "spark.log") is None


def test_killed_worker_is_called_so() -> None:
    """In a batch that is written exactly once, its error is inside of those of its callers."""
    text = (
        "[FOREACH_BATCH_USER_FUNCTION_ERROR] Return Message: Traceback (most recent call last):\n"
        '  File "sink.py", line 1, in call\n'
        "py4j.protocol.Py4JJavaError: An error occurred while calling o5.collectToPython.\n"
        ": org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting"
    )

    with pytest.raises(RunError, match="a Python worker was killed"), translate_run_errors("query", "log"):
        raise StreamingQueryException(text)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Py4JNetworkError("Answer from Java side is empty"), "JVM is gone"),
        (ConnectionRefusedError(), "JVM is gone"),
        (ValueError("x"), "CANNOT_PARSE_DATATYPE"),
    ],
)
def test_lost_jvm_is_found_behind_errors_that_follow(error: Exception, expected: str) -> None:
    """PySpark makes errors of its own of it, which say nothing of the JVM."""
    follows = PySparkException("[CANNOT_PARSE_DATATYPE] Unable to parse datatype")
    follows.__context__ = error

    with pytest.raises(RunError, match=expected), translate_run_errors("query 'bids'", "spark.log"):
        raise follows


def test_error_that_is_its_own_cause_is_translated() -> None:
    """A stored error is raised again and again, at last while what was made of it is handled."""
    error, made = PySparkException("no"), RunError("made of it")
    made.__cause__, error.__context__ = error, made

    with pytest.raises(RunError, match="query 'bids' failed"), translate_run_errors("query 'bids'", "log"):
        raise error


TEXTS = (
    "No space left on device",
    "org.apache.kafka.common.errors.TimeoutException: x",
    "java.io.IOException: Incomplete log file, ChecksumException",
    "org.apache.kafka.common.errors.TopicAuthorizationException: no",
    f"Python worker failed to connect back, {EXPIRED}",
    "schema 7 of topic 'bids' is not known to this run yet",
    "[USER_RAISED_EXCEPTION] schema 7 of topic 'bids' is not known to this run yet",
    "No space left on device [USER_RAISED_EXCEPTION] ",
    "Broker: Message size too large",
)


_WORKER = 'PythonException: Traceback (most recent call last):\n  File "shop.py"\n'
QUOTING = {
    "raise_error": "SparkRuntimeException: [USER_RAISED_EXCEPTION] bids[0]@7 does not fit the schema and "
    "on_error='fail'; it holds: {} SQLSTATE: P0001",
    "function": f"{_WORKER}OSError: {{0}}\n\nThe above exception was the direct cause of the following "
    "exception:\n\nTraceback (most recent call last):\n  File 'task.py'\nflowcore.errors.FunctionError: "
    "operator 'price': its function raised OSError: {0}",
    "reuse": f"{_WORKER}flowcore.errors.ObjectReuseError: operator 'price': its function changed {{}}",
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("error", QUOTING.values(), ids=QUOTING)
def test_text_of_a_record_decides_nothing(error: str, text: str) -> None:
    """The text of a record must not make a query that fails start again without end."""
    failed = StreamingQueryException(error.format(text))

    with pytest.raises(FlowcoreError) as raised, translate_run_errors("query 'bids'", "spark.log"):
        raise failed

    assert type(raised.value) is RunError
    assert find_mishap(failed) is None
    assert find_new_schema(failed) is None
    assert not is_too_large(failed)


def test_new_schema_is_found_where_flowcore_raises_it() -> None:
    """Spark's own words may stand before, and the place of the error behind."""
    words = "schema 7 of topic 'bids' is not known to this run yet"
    text = (
        "Job aborted due to stage failure: Lost task 0.0 in stage 1.0: SparkRuntimeException: "
        f"[USER_RAISED_EXCEPTION] {words} SQLSTATE: P0001\n\tat org.apache.spark"
    )

    assert find_new_schema(StreamingQueryException(text)) == ("bids", 7)
    assert find_new_schema(StreamingQueryException(words)) is None
    assert find_new_schema(None) is None


def test_outage_of_a_worker_of_flowcore_is_found_in_its_traceback() -> None:
    """A sink or a step of flowcore itself raises in Python, too, and quotes nobody."""
    trace = 'PythonException: Traceback (most recent call last):\n  File "a.py", line 1, in run\n'

    full = StreamingQueryException(f"{trace}OSError: [Errno 28] No space left on device")
    slow = StreamingQueryException(f"{trace}flowcore.errors.DeliveryError: {EXPIRED}")
    away = StreamingQueryException(f"{trace}flowcore.errors.UnreachableBrokerError: it does not answer")

    assert isinstance(find_outage("query", full, "log"), DiskFullError)
    assert isinstance(find_outage("query", away, "log"), UnreachableBrokerError)
    assert find_mishap(slow) is not None
    fenced = StreamingQueryException(f"{trace}flowcore.errors.BrokerError: slot 0 did not commit; {FENCED}")
    assert find_mishap(fenced) is not None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.EIO, "Input/output error", "/state/f"), DiskFullError),
        (OSError(errno.ENOTCONN, "not connected", "/mnt/state"), DiskFullError),
        (OSError(errno.ENOTCONN, "not connected"), OSError),
        (BrokenPipeError(errno.EPIPE, "pipe"), BrokenPipeError),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), ConnectionRefusedError),
        (UnreachableBrokerError("away"), UnreachableBrokerError),
    ],
    ids=["disk", "mount", "socket", "pipe", "listener", "ours"],
)
def test_only_errors_of_disks_are_outages_around_a_whole_run(error: Exception, kind: type[Exception]) -> None:
    """A user's listener may have connections of its own."""
    with pytest.raises(kind) as raised, translate_disk_errors("flow 'f'", "log"):
        raise error

    assert type(raised.value) is kind
