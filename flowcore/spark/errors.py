"""The boundary: what Spark throws becomes an error that names the operator and what to do.

A user never has to read a JVM stack trace; it stays in Spark's log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException, ParseException, PySparkException

from flowcore.errors import FlowcoreError, PlanError, RunError

__all__ = ["ignore_lost_jvm", "reason", "translate_plan_errors", "translate_run_errors"]

# What flowcore says with raise_error(...) inside of Spark.
_SAID = re.compile(r"\[USER_RAISED_EXCEPTION\] (operator '.*?) SQLSTATE: \w+", re.DOTALL)
# The last line of a Python worker's traceback.
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*([\w.]+): (.*)")


@contextmanager
def translate_plan_errors(operator: str) -> Iterator[None]:
    """Around the building of one operator's DataFrame."""
    try:
        yield
    except (AnalysisException, ParseException) as error:
        msg = f"operator {operator!r} cannot be compiled: {reason(error)}"
        raise PlanError(msg) from error


@contextmanager
def translate_run_errors(what: str, log: str) -> Iterator[None]:
    """Around an action of Spark.

    Args:
        what: The stage or query, as the message shall name it.
        log: Where Spark's own log is.
    """
    try:
        yield
    except FlowcoreError:
        raise
    except (PySparkException, Py4JJavaError) as error:
        msg = f"{what} failed: {reason(error)} (details: {log})"
        raise RunError(msg) from error
    except (Py4JError, ConnectionError) as error:
        if not _is_gone(error):
            raise
        msg = (
            f"{what} failed: Spark's JVM is gone, killed by somebody, or by the system for want of memory: "
            "what it had not committed is read again by the next start; see the system's log, and set "
            f"spark.driver.memory to what the machine has left (details: {log})"
        )
        raise RunError(msg) from error


@contextmanager
def ignore_lost_jvm() -> Iterator[None]:
    """Around what is asked of Spark; left early where its JVM is gone."""
    try:
        yield
    except (Py4JError, ConnectionError) as error:
        if not _is_gone(error):
            raise


def _is_gone(error: Py4JError | ConnectionError) -> bool:
    # Of an answer that broke off Py4J knows nothing but the question; of one that came it has a trace.
    broke_off = type(error) is Py4JError and "Trace:" not in str(error)
    return broke_off or isinstance(error, Py4JNetworkError | ConnectionError)


def reason(error: BaseException) -> str:
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
    if said := _SAID.search(text):
        return said[1]
    raised = _RAISED.findall(text)
    if raised:
        kind, message = raised[-1]
        # What flowcore says speaks for itself; of what a user's function says the kind is needed.
        return message if kind.startswith("flowcore.") else f"a Python function raised {kind}: {message}"
    lines = [line.strip() for line in text.strip().splitlines()]
    kept = [
        line
        for line in lines
        if line and not line.startswith(("at ", "== ", "^^", "JVM stacktrace", "'", "+-"))
    ]
    return " ".join(kept[:5]) or type(error).__name__
