"""Lifecycle: when are functions with ``open`` and ``close`` opened and closed? Once for each task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import MethodType
from typing import Any

from flowcore.chains.failures import failed
from flowcore.chains.steps import Step

__all__ = ["opened"]


@contextmanager
def opened(steps: Iterable[Step]) -> Iterator[None]:
    """The functions of some steps, open, each object once; what was opened is closed whatever happens.

    Raises:
        FunctionError: One of them cannot be opened or closed; the others are closed nevertheless.
    """
    seen: set[int] = set()
    with ExitStack() as stack:
        for step in steps:
            owner = _owner(step.function)
            if isinstance(owner, type) or id(owner) in seen:
                continue
            seen.add(id(owner))
            if callable(getattr(owner, "open", None)):
                _call(step, owner, "open")
            if callable(getattr(owner, "close", None)):
                stack.callback(_call, step, owner, "close")
        yield


def _owner(function: Any) -> Any:
    """The object that has the state."""
    while True:
        match function:
            case partial():
                function = function.func
            case MethodType():
                return function.__self__
            case _:
                return function


def _call(step: Step, owner: Any, name: str) -> None:
    try:
        getattr(owner, name)()
    except Exception as error:
        raise failed(step, error, None, hint=f"in {name}()") from error
