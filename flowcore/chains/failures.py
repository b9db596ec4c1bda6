"""Failures: whose function failed, on which record?

The one boundary between users' functions and the rest. The traceback tells everything, so nothing is noted
per record while all goes well.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from flowcore.chains.generated import FILENAME, Part
from flowcore.chains.steps import Step
from flowcore.errors import FunctionError

__all__ = ["Where", "failed", "failed_in_part", "misfit", "show"]

Where = Callable[[int], str | None]
"""The coordinates of an input record by its number, None if it has none."""
_SHOWN = 200


def failed_in_part(error: Exception, part: Part, where: Where) -> FunctionError:
    """What to raise for an error that came out of generated text."""
    step: Step | None = None
    number: int | None = None
    record: Any = None
    emits = False
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_filename == FILENAME:
            step = part.owners[trace.tb_lineno - 1] or step
            number = frame.f_locals.get("i", number)
            record = frame.f_locals.get("r0", record)
            # Nothing called from this line, so no user's function failed: what it returned cannot be used.
            emits = trace.tb_next is None
        trace = trace.tb_next
    place = (where(number) if number is not None else None) or show(record)
    called = step is not None and step.kind != "filter"
    if called and emits and isinstance(error, (AttributeError, TypeError)):
        hint = "it emits no dicts, or cannot be called with one record"
        return failed(step, error, place, hint=hint, number=number)
    return failed(step, error, place, number=number)


def failed(
    step: Step | None, error: Exception, place: str | None, hint: str = "", number: int | None = None
) -> FunctionError:
    """What to raise for an error in a step's function."""
    name = f"operator {step.name!r}" if step is not None else "a chain of Python functions"
    said = " ".join(str(error).split())
    said = said if len(said) <= _SHOWN else f"{said[:_SHOWN]}..."
    at = _line_of(error)
    parts = [f"{name}: its function raised {type(error).__name__}{f': {said}' if said else ''}"]
    parts += [f"at {at}"] if at else []
    parts += [f"for the record {place}"] if place else []
    text = " ".join(parts)
    return _numbered(FunctionError(f"{text} ({hint})" if hint else text), step, number)


def _line_of(error: Exception) -> str | None:
    """File and line in the user's function."""
    trace, found = error.__traceback__, None
    ours = Path(__file__).parent
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file != FILENAME and Path(file).parent != ours:
            found = f"{Path(file).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def misfit(step: Step, what: str, place: str | None, number: int | None = None) -> FunctionError:
    """What to raise for a record that is none of the operator's schema."""
    beside = f", for the record {place}" if place else ""
    columns = ", ".join(f"{each.name}: {each.type}" for each in step.schema)
    error = FunctionError(
        f"operator {step.name!r} {what}{beside}: it could not go on as a row; declared are {columns}; make "
        "its function emit that, or pass another schema"
    )
    return _numbered(error, step, number)


def _numbered(error: FunctionError, step: Step | None, number: int | None) -> FunctionError:
    error.operator = None if step is None else step.name
    error.number = number
    return error


def show(value: Any) -> str:
    """The begin of a value, on one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
