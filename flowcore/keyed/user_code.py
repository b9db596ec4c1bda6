"""Errors and outputs of users' functions in a key group."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from flowcore.errors import FlowcoreError, FunctionError
from flowcore.escaping import show_safely
from flowcore.serializers.python_values import (
    MISFIT_ERRORS,
    to_arrow,
)

__all__ = ["build_columns", "number_repeats", "to_function_error", "wrap_errors"]

_SHOWN_CHARACTERS = 200
_SHOWN_OF_ERROR = 2_000
"""A text of any length would make a dead letter that no topic takes."""


@contextmanager
def wrap_errors(name: str, describe: Callable[[Exception], str] = lambda _: "") -> Iterator[None]:
    """Turn exceptions of an operator's function into a `FunctionError`.

    Args:
        describe: Describes the call that raised, with a leading blank; nothing by default.

    Raises:
        FunctionError: The function raised.
    """
    try:
        yield
    except FlowcoreError:
        raise
    except Exception as error:
        raise to_function_error(name, error, describe(error)) from error


def to_function_error(name: str, error: Exception, call: str) -> FlowcoreError:
    """The error of a call that raised, on one line.

    Args:
        error: What its function raised; flowcore's own errors are returned as they are.
        call: Describes the call, with a leading blank.
    """
    if isinstance(error, FlowcoreError):
        return error
    text = " ".join(show_safely(str, error).split())
    text = text if len(text) <= _SHOWN_OF_ERROR else f"{text[:_SHOWN_OF_ERROR]}..."
    raised = f"{type(error).__name__}{f': {text}' if text else ''}"
    return FunctionError(f"operator {name!r}: its function raised {raised}{call}")


def number_repeats(values: Iterable[Hashable]) -> list[int]:
    """The position of each value among those that are equal to it, from 0."""
    counts: dict[Hashable, int] = {}
    positions = []
    for value in values:
        positions.append(counts.get(value, 0))
        counts[value] = positions[-1] + 1
    return positions


def build_columns(
    records: Sequence[Mapping[str, Any]], schema: pa.Schema, operator: str
) -> list[pa.Array[Any]]:
    """The columns of records that an operator's function emitted.

    Raises:
        FunctionError: A record does not fit the schema.
    """
    try:
        return [to_arrow([record[field.name] for record in records], field.type) for field in schema]
    except MISFIT_ERRORS as error:
        wrong = next((record for record in records if not _fits(record, schema)), records[0])
        shown = show_safely(repr, wrong)[:_SHOWN_CHARACTERS]
        columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
        msg = (
            f"operator {operator!r}: its function emitted {shown}, which is not a record of ({columns}): "
            f"{show_safely(repr, error)[:_SHOWN_OF_ERROR]}; emit mappings with these columns, or declare "
            "another schema"
        )
        raise FunctionError(" ".join(msg.split())) from error


def _fits(record: Any, schema: pa.Schema) -> bool:
    try:
        for field in schema:
            to_arrow([record[field.name]], field.type)
    except MISFIT_ERRORS:
        return False
    return True
