"""Python functions of operators: their kinds, their checks and the attributes that they declare.

A plain function is called for each record and keeps no record. A *rich* function is an object with state of
its own; it may have ``open()`` and ``close()``, which are called before and after its records.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from flowcore.errors import PlanError

__all__ = ["RichFunction", "is_rich", "name_of", "promises", "require_arguments", "require_function"]


class RichFunction:
    """An optional base class for functions with state.

    `open` is called in a worker before the first record, `close` when the worker ends, or the task in a
    bounded stage. If it has the method ``process_record_attributes``, this is called with
    `flowcore.elements.RecordAttributes` before the first record and at each change. Such a function may keep
    its output records, so they are copied unless the function declares otherwise.
    """

    def open(self) -> None:
        """Acquire resources: connections, models."""

    def close(self) -> None:
        """Release them."""

    def is_output_value_stored(self) -> bool:
        """Whether it may still use a record that it has emitted."""
        return True

    def is_output_idempotent(self) -> bool:
        """Whether a later output replaces the earlier ones of its key."""
        return False

    def __call__(self, record: Any) -> Any:
        """Process one record, or one record batch."""
        raise NotImplementedError


def is_rich(function: object) -> bool:
    """True for an object with state, False for a plain function.

    >>> is_rich(len), is_rich({}.get), is_rich(RichFunction())
    (False, False, True)
    """
    match function:
        case partial():
            return is_rich(function.func)
        case MethodType():
            return not isinstance(function.__self__, type)
        case FunctionType() | BuiltinFunctionType() | type():
            return False
        case _:
            return True


def promises(function: object, operator: str, *, idempotent: bool = False) -> Mapping[str, bool]:
    """The attributes of an operator that keeps no record itself, and calls this function.

    It declares ``is_output_value_stored`` and ``is_output_idempotent`` as attributes, properties or
    methods. By default a plain function does not use its output again, and a rich one does.

    Args:
        idempotent: Its later output replaces the earlier one, unless it declares otherwise.

    Raises:
        PlanError: A declaration is neither true nor false.
    """
    return {
        "output_only_at_end": False,
        "output_on_checkpoint": False,
        "input_record_stored": False,
        "output_value_stored": _declared(function, "is_output_value_stored", operator, is_rich(function)),
        "output_idempotent": _declared(function, "is_output_idempotent", operator, idempotent),
    }


def require_function(function: object, operator: str, arguments: Sequence[str] = ("record",)) -> None:
    """Check that a function can be called with a record, or with other arguments.

    Raises:
        PlanError: The object is not callable, is a class whose instances are, takes another number of
            arguments, or is a coroutine function.
    """
    if isinstance(function, type) and any("__call__" in vars(base) for base in function.__mro__):
        msg = (
            f"operator {operator!r}: {function.__name__} is a class: called with a {arguments[0]} it would "
            f"make a function of it; pass an object, for instance {function.__name__}()"
        )
        raise PlanError(msg)
    if not callable(function):
        msg = f"operator {operator!r}: {function!r} cannot be called with a {arguments[0]}; pass a function"
        raise PlanError(msg)
    if isinstance(function, RichFunction) and type(function).__call__ is RichFunction.__call__:
        name = type(function).__name__
        msg = (
            f"operator {operator!r}: {name} inherits __call__ of RichFunction, which raises "
            f"NotImplementedError: each call would fail; define __call__(self, {', '.join(arguments)}) in it"
        )
        raise PlanError(msg)
    require_arguments(function, operator, arguments)


def require_arguments(
    function: Callable[..., Any], operator: str, arguments: Sequence[str], method: str = ""
) -> None:
    """Check that a call with these arguments can work, as far as Python knows the signature.

    Args:
        method: The name of the method, if the function is a method of a user's object.

    Raises:
        PlanError: The function takes another number of arguments, or nothing would await its result.
    """
    name = method or name_of(function)
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        msg = (
            f"operator {operator!r}: {name} is an async def: a call would return a coroutine, which nothing "
            "awaits; pass a function without async"
        )
        raise PlanError(msg)
    try:
        # What a decorator wraps may take arguments that the decorator adds.
        signature = inspect.signature(function, follow_wrapped=False)
    except (ValueError, TypeError):
        return  # such as of some built-in functions
    try:
        signature.bind(*arguments)
    except TypeError as error:
        if _takes(called, arguments):  # of a __call__ that is a staticmethod Python drops an argument
            return
        given, taken = ", ".join(arguments), ", ".join(signature.parameters)
        msg = (
            f"operator {operator!r}: {name}({taken}) is called with ({given}): {error}, so that each call "
            f"would fail; pass a function of ({given})"
        )
        raise PlanError(msg) from None


def _takes(called: Callable[..., Any], arguments: Sequence[str]) -> bool:
    try:
        inspect.signature(called, follow_wrapped=False).bind(*arguments)
    except (ValueError, TypeError):
        return False
    return True


def name_of(function: object) -> str:
    """The name of a function in plans, the same in every process.

    >>> name_of(RichFunction())
    'RichFunction'
    """
    if isinstance(function, partial):
        return name_of(function.func)
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _declared(function: object, name: str, operator: str, default: bool) -> bool:
    value = getattr(function, name, None)
    if value is None and isinstance(function, partial):
        return _declared(function.func, name, operator, default)
    if value is None and isinstance(function, MethodType):
        return _declared(function.__self__, name, operator, default)
    if callable(value):
        value = value()
    if value is not None and not isinstance(value, bool):
        msg = (
            f"operator {operator!r}: {name}={value!r} of {name_of(function)} is neither true nor false: it "
            "would promise nothing; set it to True or False"
        )
        raise PlanError(msg)
    return default if value is None else value
