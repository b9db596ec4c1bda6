"""Translate Spark's exceptions into errors that name the operator and what to do.

A user does not have to read a JVM stack trace; it stays in Spark's log.
"""

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException, ParseException, PySparkException

from flowcore.causes import causes_of
from flowcore.errors import (
    BrokerAccessError,
    DamagedCheckpointError,
    DiskFullError,
    FlowcoreError,
    OutageError,
    PlanError,
    RunError,
    UnreachableBrokerError,
)
from flowcore.kafka.refusals import GUIDE
from flowcore.kafka.transactions import EXPIRED, FENCED

__all__ = [
    "collect_texts", "find_mishap", "find_new_schema", "find_outage", "has_lost_records", "ignore_lost_jvm",
    "is_too_large", "translate_disk_errors", "translate_plan_errors", "translate_run_errors",
]  # fmt: skip

_SLOW_PYTHON = "Python worker failed to connect back"
"""Spark's error if a Python process takes more than ten seconds to start; the time cannot be set."""

_MISHAPS = {
    _SLOW_PYTHON: "a Python process was slow to start",
    EXPIRED: "a transaction took too long",
    FENCED: "a process that had been stopped went on, and ended a transaction",
}

# Errors that quote records, whose text another program chose: of flowcore's own raise_error(...) all that
# follows, and of a Python worker that names what a user's function raised, all of the traceback.
_RAISE = "[USER_RAISED_EXCEPTION] "
_TRACE = "Traceback (most recent call last):"
_OF_USER = re.compile(r"flowcore\.errors\.(?:FunctionError|ObjectReuseError): ")
# See `flowcore.spark.topics.formats.avro`.
_NEW_SCHEMA = re.compile(r"schema (\d+) of topic '([^']+)' is not known to this run yet")
# A message of flowcore's own raise_error(...).
_OWN = re.compile(r"\[USER_RAISED_EXCEPTION\] (operator '.*?) SQLSTATE: \w+", re.DOTALL)
# The last line of a Python worker's traceback.
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*([\w.]+): (.*)")
_CRASHED = "Python worker exited unexpectedly"
# A disk or a mounted file system that fails may come back, as after a fault of the network.
_DISK_NUMBERS = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE, errno.ENOTCONN,
)  # fmt: skip
_DISK = re.compile("|".join(map(os.strerror, _DISK_NUMBERS)))
_ISSUER_AWAY = "An internal error occurred while retrieving token from callback handler"
"""Of Kafka's login, also if the issuer refuses, which Python's client finds before the next start."""
# Kafka's own errors that it calls retriable, a broker's name that cannot be resolved, and flowcore's own.
_AWAY = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(?:Timeout|BrokerNotAvailable|Coordinator\w+|Disconnect|"
    r"KafkaStorage|LeaderNotAvailable|Network|NotController|NotEnoughReplicas\w*|NotLeaderOrFollower)Exception"
    r"|Cannot fetch record for offset \d+ in \d+ milli|No resolvable bootstrap urls|"
    rf"flowcore\.errors\.UnreachableBrokerError:|{_ISSUER_AWAY}"
)
_REFUSED = re.compile(
    r"org\.apache\.kafka\.common\.errors\.\w*(?:Authentication|Authorization)Exception|"
    r"flowcore\.errors\.BrokerAccessError:"
)
# What librdkafka and Kafka's Java client say of a message or a batch that its topic does not take.
_TOO_LARGE = re.compile(r"Broker: Message size too large|errors\.RecordTooLargeException")
# What Spark says where a topic does not have what a query reads next.
_LOST = "Some data may have been lost because they are not available in Kafka any more"
# What Spark, Hadoop and RocksDB say of a file of a checkpoint that is cut off, changed or missing.
_DAMAGED = re.compile(
    r"CANNOT_LOAD_STATE_STORE\.(?!UNRELEASED_THREAD|\w+OUT_OF_MEMORY)|"
    r"CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED|ChecksumException|"
    r"Incomplete log file|MALFORMED_LOG_FILE|BATCH_METADATA_NOT_FOUND|"
    r"STREAMING_CHECKPOINT_MISSING_METADATA_FILE|RocksDBException: Corruption"
)
# What Spark's Kafka source says of a message.
_TIMESTAMP = re.compile(
    r"Record at topic (\S+) partition (\d+) offset (\d+) has timestamp value (-?\d+) that"
)
_FILE = re.compile(r"(/[^\s:,;'\"\]()]*/checkpoints/[^\s:,;'\"\]()]+)")


@contextmanager
def translate_plan_errors(operator: str, columns: Mapping[str, str] | None = None) -> Iterator[None]:
    """Translate the errors of building one operator's DataFrame.

    Args:
        columns: The user's names of columns, by those that the frame has.
    """
    try:
        yield
    except (AnalysisException, ParseException) as error:
        names = columns or {}
        reason = re.sub(r"\b_c\d+\b", lambda found: names.get(found[0], found[0]), _reason(error))
        msg = f"operator {operator!r} cannot be compiled: {reason}"
        raise PlanError(msg) from error


@contextmanager
def translate_run_errors(what: str, log: str) -> Iterator[None]:
    """Translate the errors of an action of Spark; messages name ``what`` it ran, and Spark's ``log`` file."""
    try:
        yield
    except Exception as error:
        found = _translate(what, error, log)
        if found is None or found is error:
            raise
        raise found from error


@contextmanager
def translate_disk_errors(what: str, log: str) -> Iterator[None]:
    """Translate the errors of disks, in code that also calls others: arguments as above."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FlowcoreError) or error.errno not in _DISK_NUMBERS or _is_of_socket(error):
            raise
        raise _disk_full(what, str(error), log) from error


def find_outage(what: str, error: Exception | None, log: str) -> OutageError | None:
    """The outage that has ended a query; None if it has another cause. Arguments as above."""
    found = None if error is None else _translate(what, error, log)
    return found if isinstance(found, OutageError) else None


def find_mishap(error: Exception | None) -> str | None:
    """What has ended a query that may be started again at once, as on a busy machine; None if it may not."""
    found = "" if error is None else _own_words(error)
    return next((mishap for text, mishap in _MISHAPS.items() if text in found), None)


def is_too_large(error: Exception) -> bool:
    """Whether a topic has refused a message or a batch as too large, which has ended a query."""
    return _TOO_LARGE.search(_own_words(error)) is not None


def has_lost_records(error: Exception | None) -> bool:
    """Whether a topic did not have the records any more that a query was to read, which has ended it."""
    return error is not None and _LOST in _own_words(error)


def find_new_schema(error: Exception | None) -> tuple[str, int] | None:
    """The topic and the id of a schema that a run did not know, if that has ended a query."""
    texts = [] if error is None else [text for text in collect_texts(error) if not _OF_USER.search(text)]
    found = next(filter(None, (_NEW_SCHEMA.match(text.partition(_RAISE)[2]) for text in texts)), None)
    return None if found is None else (found[2], int(found[1]))


@contextmanager
def ignore_lost_jvm() -> Iterator[None]:
    """Leave the block early if Spark's JVM is gone."""
    try:
        yield
    except (Py4JError, ConnectionError) as error:
        if not _is_gone(error):
            raise


def _translate(what: str, error: Exception, log: str) -> FlowcoreError | None:
    """The error of flowcore for an error of an action of Spark; None if it is of something else."""
    if isinstance(error, FlowcoreError):
        return error
    if isinstance(error, PySparkException | Py4JError | ConnectionError) and _is_of_lost_jvm(error):
        return RunError(
            f"{what} failed: Spark's JVM is gone, killed by a user, or by the system for lack of memory: the "
            "next start reads again what it had not committed; see the system's log, and set "
            f"spark.driver.memory to what the machine has left (details: {log})"
        )
    if isinstance(error, PySparkException | Py4JJavaError):
        return _translate_spark_error(what, error, log)
    if isinstance(error, OSError) and error.errno in _DISK_NUMBERS:
        return _disk_full(what, str(error), log)
    return None


def _translate_spark_error(what: str, error: Exception, log: str) -> FlowcoreError:
    """The error of flowcore for an error of Spark, by what the errors that caused it say."""
    reason, found = _reason(error), _own_words(error)
    if _DISK.search(found):
        return _disk_full(what, reason, log)
    if _REFUSED.search(found):
        msg = (
            f"{what} failed: its broker refuses the login, or does not allow this: {reason}: it would fail "
            f"at each start; change the settings or the broker's access control list, see {GUIDE} (details: "
            f"{log})"
        )
        return BrokerAccessError(msg)
    if _AWAY.search(found):
        who, did = "its broker", "did not answer in time"
        if _ISSUER_AWAY in found:
            who, did = "the issuer of its tokens", "gave no token"
        msg = (
            f"{what} failed: {who} {did}: {reason}: nothing is lost, the batch runs again "
            f"when it is back; check {who} and the way to it (details: {log})"
        )
        return UnreachableBrokerError(msg)
    if _DAMAGED.search(found):
        file = _FILE.search(found)
        which = f"the file {file[1]}" if file else "a file"
        msg = (
            f"{what} failed: {which} of its checkpoint cannot be read: {reason}: what it had read or kept is "
            f"unknown, so it would fail at each start; bring back a copy of the checkpoint (details: {log})"
        )
        return DamagedCheckpointError(msg)
    if timed := _TIMESTAMP.search(found):
        topic, partition, offset, time = timed.groups()
        reason = (
            f"{topic}[{partition}]@{offset} has the Kafka timestamp {time}, whose microseconds Spark cannot "
            "hold: it would fail at each start; remove the records of the partition before offset "
            f"{int(offset) + 1} with kafka-delete-records, and start again, a live query with --skip-lost; "
            "message.timestamp.before.max.ms=4000000000000000 of the topic keeps such records out"
        )
    return RunError(f"{what} failed: {reason} (details: {log})")


def _disk_full(what: str, reason: str, log: str) -> DiskFullError:
    return DiskFullError(
        f"{what} failed: a disk or a quota is full, or a file system is read-only or fails: {reason}: "
        "nothing is lost, what was not committed is read again; make room on the disks of state.dir and of "
        f"spark.local.dir, mount them for writing, or check them (details: {log})"
    )


def collect_texts(error: BaseException) -> list[str]:
    """The texts of an error and of the errors that caused it, with the names of their classes."""
    found = []
    each: BaseException | None = error
    while each is not None:
        found.append(str(each))
        java = getattr(each, "java_exception", None) or getattr(each, "_origin", None)
        while java is not None:
            found.append(java.toString())
            cause = java.getCause()
            java = None if cause is None or cause.equals(java) else cause
        each = getattr(each, "_cause", None)  # the error of a query has no Java object, but that of its cause
    return found


def _own_words(error: BaseException) -> str:
    """The texts of an error and of its causes, as far as they do not quote records."""
    return " ".join(map(_without_data, collect_texts(error)))


def _without_data(text: str) -> str:
    words = text.partition(_TRACE)[0] if _OF_USER.search(text) else text
    return words.partition(_RAISE)[0]


def _is_of_socket(error: OSError) -> bool:
    """Whether an error that a mounted file system can have is that of a connection; it names no file."""
    return error.errno == errno.ENOTCONN and error.filename is None


def _is_of_lost_jvm(error: Exception) -> bool:
    """Whether the JVM is gone; PySpark makes other errors of it, such as that of a type it cannot read."""
    return any(isinstance(each, Py4JError | ConnectionError) and _is_gone(each) for each in causes_of(error))


def _is_gone(error: Py4JError | ConnectionError) -> bool:
    # An answer that breaks off gives Py4J no trace; an error in the JVM does.
    broke_off = type(error) is Py4JError and "Trace:" not in str(error)
    return broke_off or isinstance(error, Py4JNetworkError | ConnectionError)


def _reason(error: BaseException) -> str:
    """The innermost message of a Spark error, without class names and stack."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    text = ""
    while java is not None:
        message = java.getMessage()
        text = message or text
        cause = java.getCause()
        java = None if cause is None or cause.equals(java) else cause
    text = text or (error.getMessage() if isinstance(error, PySparkException) else None) or str(error)
    text = text.partition("=== Streaming Query ===")[0]
    if own := _OWN.search(text):
        return own[1]
    if _SLOW_PYTHON in text:
        return (
            "a Python process did not start within ten seconds, so the machine is too busy, or has no memory "
            "left: run less on it, and start the flow again"
        )
    if _CRASHED in text:
        return (
            "a Python worker was killed, by a user or by the system for lack of memory, or it crashed in the "
            "native code of a function: see the system's log, and leave the workers more memory"
        )
    raised = _RAISED.findall(text)
    if raised:
        kind, message = raised[-1]
        # An error of flowcore names its cause; an error of a user's function needs its type.
        return message if kind.startswith("flowcore.") else f"a Python function raised {kind}: {message}"
    lines = [line.strip() for line in text.strip().splitlines()]
    kept = [
        line
        for line in lines
        if line and not line.startswith(("at ", "== ", "^^", "JVM stacktrace", "'", "+-"))
    ]
    return " ".join(kept[:5]) or type(error).__name__
