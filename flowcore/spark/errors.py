"""Translate Spark's exceptions into errors that name the operator and what to do.

A user does not have to read a JVM stack trace; it stays in Spark's log.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException, ParseException, PySparkException

from flowcore.errors import FlowcoreError, PlanError, RunError

__all__ = ["ignore_lost_jvm", "translate_plan_errors", "translate_run_errors"]

# A message of flowcore's own raise_error(...).
_OWN = re.compile(r"\[USER_RAISED_EXCEPTION\] (operator '.*?) SQLSTATE: \w+", re.DOTALL)
# The last line of a Python worker's traceback.
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*([\w.]+): (.*)")


@contextmanager
def translate_plan_errors(operator: str) -> Iterator[None]:
    """Translate the errors of building one operator's DataFrame."""
    try:
        yield
    except (AnalysisException, ParseException) as error:
        msg = f"operator {operator!r} cannot be compiled: {_reason(error)}"
        raise PlanError(msg) from error


@contextmanager
def translate_run_errors(what: str, log: str) -> Iterator[None]:
    """Translate the errors of an action of Spark; messages name ``what`` it ran, and Spark's ``log`` file."""
    try:
        yield
    except FlowcoreError:
        raise
    except (PySparkException, Py4JJavaError) as error:
        msg = f"{what} failed: {_reason(error)} (details: {log})"
        raise RunError(msg) from error
    except (Py4JError, ConnectionError) as error:
        if not _is_gone(error):
            raise
        msg = (
            f"{what} failed: Spark's JVM is gone, killed by a user, or by the system for lack of memory: the "
            "next start reads again what it had not committed; see the system's log, and set "
            f"spark.driver.memory to what the machine has left (details: {log})"
        )
        raise RunError(msg) from error


@contextmanager
def ignore_lost_jvm() -> Iterator[None]:
    """Leave the block early if Spark's JVM is gone."""
    try:
        yield
    except (Py4JError, ConnectionError) as error:
        if not _is_gone(error):
            raise


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
