"""What users' functions do in a key group: what they raise, and what they put out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from flowcore.errors import FlowcoreError, FunctionError

__all__ = ["build_columns", "to_function_error", "wrap_errors"]

_SHOWN = 200


@contextmanager
def wrap_errors(name: str, where: Callable[[Exception], str] = lambda _: "") -> Iterator[None]:
    """Around calls of an operator's function.

    Args:
        name: The operator.
        where: Says what a call was about that raised this, with a leading blank; nothing by default.

    Raises:
        FunctionError: What it raised, on one line.
    """
    try:
        yield
    except FlowcoreError:
        raise
    except Exception as error:
        raise to_function_error(name, error, where(error)) from error


def to_function_error(name: str, error: Exception, where: str) -> FlowcoreError:
    """What is said of a call that raised an error, on one line.

    Args:
        name: The operator.
        error: What its function raised; what flowcore has raised itself is said as it is.
        where: What the call was about, with a leading blank.
    """
    if isinstance(error, FlowcoreError):
        return error
    said = " ".join(str(error).split())
    raised = f"{type(error).__name__}{f': {said}' if said else ''}"
    return FunctionError(f"operator {name!r}: its function raised {raised}{where}")


def build_columns(
    records: Sequence[Mapping[str, Any]], schema: pa.Schema, operator: str
) -> list[pa.Array[Any]]:
    """The columns of records that an operator's function put out.

    Raises:
        FunctionError: They are no records of the schema.
    """
    try:
        return [pa.array([record[field.name] for record in records], field.type) for field in schema]
    except (pa.ArrowException, KeyError, TypeError, OverflowError) as error:
        wrong = next((record for record in records if not _fits(record, schema)), records[0])
        shown = repr(wrong)[:_SHOWN]
        columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
        msg = (
            f"operator {operator!r}: its function put out {shown}, no record of ({columns}): {error!r}; "
            "let it put out mappings with these columns, or declare another schema"
        )
        raise FunctionError(" ".join(msg.split())) from error


def _fits(record: Any, schema: pa.Schema) -> bool:
    try:
        for field in schema:
            pa.array([record[field.name]], field.type)
    except (pa.ArrowException, KeyError, TypeError, OverflowError):
        return False
    return True
