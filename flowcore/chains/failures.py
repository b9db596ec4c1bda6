"""The errors that a failing step of a chain raises.

This module is the one boundary between users' functions and the rest. Step and record are read from the
traceback, so nothing is recorded while no function fails.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from flowcore.chains.codegen import FILENAME, CompiledPart
from flowcore.chains.steps import Step, asks_for_attributes, owner_of
from flowcore.elements import RecordAttributes
from flowcore.errors import FunctionError
from flowcore.escaping import show_safely

__all__ = [
    "Locate",
    "emit_attributes",
    "function_error",
    "misfit_error",
    "open_functions",
    "part_error",
    "show_value",
]

Locate = Callable[[int], str | None]
"""The coordinates of an input record by its number, None if it has none."""
_SHOWN = 200


def part_error(error: Exception, part: CompiledPart, locate: Locate) -> FunctionError:
    """The error to raise for an exception from a compiled part."""
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
            # The line itself raised, not a function that it called: the function's result cannot be used.
            emits = trace.tb_next is None
        trace = trace.tb_next
    place = (locate(number) if number is not None else None) or show_value(record)
    hint = ""
    if (
        emits
        and step is not None
        and step.kind != "filter"
        and isinstance(error, (AttributeError, TypeError))
    ):
        hint = "it does not emit dicts, or cannot be called with one record"
    return function_error(step, error, place, hint=hint, number=number)


def function_error(
    step: Step | None, error: Exception, place: str | None, hint: str = "", number: int | None = None
) -> FunctionError:
    """The error to raise for an exception in a step's function."""
    name = f"operator {step.name!r}" if step is not None else "a chain of Python functions"
    message = _shorten(show_safely(str, error))
    at, trace, ours = None, error.__traceback__, Path(__file__).parent
    while trace is not None:  # the innermost line that is not the chain's own
        file = trace.tb_frame.f_code.co_filename
        if file != FILENAME and Path(file).parent != ours:
            at = f"{Path(file).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    parts = [f"{name}: its function raised {type(error).__name__}{f': {message}' if message else ''}"]
    parts += [f"at {at}"] if at else []
    parts += [f"for the record {place}"] if place else []
    text = " ".join(parts)
    return _attribute(FunctionError(f"{text} ({hint})" if hint else text), step, number)


def misfit_error(step: Step, what: str, place: str | None, number: int | None = None) -> FunctionError:
    """The error to raise for a record that does not match the operator's schema."""
    record = f", for the record {place}" if place else ""
    columns = ", ".join(f"{each.name}: {each.type}" for each in step.schema)
    error = FunctionError(
        f"operator {step.name!r} {what}{record}: it could not become a row; declared are {columns}; make "
        "its function emit that, or pass another schema"
    )
    return _attribute(error, step, number)


def show_value(value: Any) -> str:
    """The beginning of a value's text, on one line."""
    return _shorten(show_safely(repr, value))


@contextmanager
def open_functions(steps: Iterable[Step]) -> Iterator[None]:
    """Call ``open`` of the steps' functions, and ``close`` at the end, once for each object.

    Raises:
        FunctionError: A function could not be opened or closed; the others are closed nevertheless.
    """
    with ExitStack() as stack:
        for step, owner in _owners(steps):
            if callable(getattr(owner, "open", None)):
                _call_owner(step, owner, "open")
            if callable(getattr(owner, "close", None)):
                stack.callback(_call_owner, step, owner, "close")
        yield


def emit_attributes(steps: Iterable[Step], attributes: RecordAttributes) -> None:
    """Call ``process_record_attributes`` of the steps' functions that have it, once for each object.

    Raises:
        FunctionError: A function raised.
    """
    for step, owner in _owners(steps):
        if asks_for_attributes(owner):
            _call_owner(step, owner, "process_record_attributes", attributes)


def _owners(steps: Iterable[Step]) -> Iterator[tuple[Step, Any]]:
    """The objects whose methods are called, each with its first step."""
    seen: set[int] = set()
    for step in steps:
        owner = owner_of(step.function)
        if not isinstance(owner, type) and id(owner) not in seen:
            seen.add(id(owner))
            yield step, owner


def _call_owner(step: Step, owner: Any, name: str, *arguments: Any) -> None:
    try:
        getattr(owner, name)(*arguments)
    except Exception as error:
        raise function_error(step, error, None, hint=f"in {name}()") from error


def _attribute(error: FunctionError, step: Step | None, number: int | None) -> FunctionError:
    error.operator = None if step is None else step.name
    error.number = number
    return error


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
