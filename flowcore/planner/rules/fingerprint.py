"""Fingerprints of what operators compute.

Two runs of a stage with equal fingerprints over equal sources have equal results, so the second is not
needed. A function counts by its code, by its defaults, closure and bound object, and by the functions and
constants of its own package that it uses. Code of other packages counts by name.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from flowcore.api.connectors import ADDED_LATER
from flowcore.api.operators import Operator

__all__ = ["fingerprint_operators"]

_FORMER_NAMES = {
    "EndOfStreamTrigger": "EndOfStream",
    "EventTimeTrigger": "EventTime",
    "ProcessingTimeTrigger": "ProcessingTime",
    "WindowAggregate": "Aggregate",
    "WindowProcess": "Process",
    "WindowReduce": "Reduce",
}
"""Classes of flowcore by their names in committed results: a new name does not run a stage again."""
_NOT_COMPUTED = frozenset(field.name for field in fields(Operator)) - {"name"}
_CONSTANTS = (type(None), bool, int, float, str, bytes, tuple, frozenset, list, set, dict)


def fingerprint_operators(operators: Iterable[Operator]) -> str:
    """A SHA-256 digest of what operators compute, as hexadecimal text."""
    return hashlib.sha256("\n".join(map(_describe, operators)).encode()).hexdigest()


def _describe(node: Operator) -> str:
    settings = [
        f"{field.name}={_value(getattr(node, field.name), ())}"
        for field in _counted_fields(node)
        if field.name not in _NOT_COMPUTED
    ]
    inputs = ",".join(parent.name for parent in node.inputs)
    return f"{type(node).__name__}({inputs}; {'; '.join(settings)})"


def _value(value: Any, inside: tuple[FunctionType, ...]) -> str:
    """Text that differs when the value does; ``inside`` holds the functions being described."""
    match value:
        case set() | frozenset():  # their order changes from process to process
            return f"{{{','.join(sorted(_value(item, inside) for item in value))}}}"
        case tuple() | list():
            return f"[{','.join(_value(item, inside) for item in value)}]"
        case Mapping():
            return f"{{{','.join(f'{k!r}:{_value(v, inside)}' for k, v in value.items())}}}"
        case FunctionType():
            return _function(value, inside)
        case type():
            functions = {name: each for name, each in vars(value).items() if isinstance(each, FunctionType)}
            name = f"{value.__module__}.{value.__qualname__}{_definition(value)}"
            return f"{name}{_value(functions, inside)}"
        case _:
            made_of = _made_of(value)
            return repr(value) if made_of is None else _value(made_of, inside)


def _made_of(value: Any) -> tuple[object, ...] | None:
    """What distinguishes an object from others of its class, None for a plain value."""
    if isinstance(value, MethodType):
        return value.__self__, value.__func__
    if isinstance(value, partial):
        return value.func, value.args, value.keywords
    if is_dataclass(value):
        # The methods of a user's class count; of flowcore's own classes only the fields do.
        kind = type(value)
        ours = kind.__module__.startswith("flowcore.")
        name = _FORMER_NAMES.get(kind.__name__, kind.__name__) if ours else kind
        return name, {field.name: getattr(value, field.name) for field in _counted_fields(value)}
    if hasattr(value, "__dict__") and not isinstance(value, (Enum, ModuleType)):
        return type(value), vars(value)
    return None


def _counted_fields(value: Any) -> Iterator[Field[Any]]:
    """The fields that count; one that was added later does not count where it has its default."""
    for field in fields(value):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.metadata != ADDED_LATER or getattr(value, field.name) != default:
            yield field


def _function(function: FunctionType, inside: tuple[FunctionType, ...]) -> str:
    name = f"{function.__module__}.{function.__qualname__}"
    if function in inside:
        return name
    inside = (*inside, function)
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_set(cell)]
    made_with = (function.__defaults__, function.__kwdefaults__, cells, dict(_globals(function)))
    return f"{name}:{_code(function.__code__)}{_value(made_with, inside)}"


def _globals(function: FunctionType) -> Iterator[tuple[str, object]]:
    home = (function.__module__ or "").partition(".")[0]
    for name in sorted(_names(function.__code__)):
        value = function.__globals__.get(name)
        theirs = (getattr(value, "__module__", None) or "").partition(".")[0]
        if type(value) in _CONSTANTS or (isinstance(value, (FunctionType, type)) and theirs == home):
            yield name, value


def _names(code: CodeType) -> set[str]:
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def _definition(kind: type) -> str:
    """A digest of the definition of a generated Protobuf class, which is not in its functions."""
    file = getattr(getattr(kind, "DESCRIPTOR", None), "file", None)
    return hashlib.sha256(file.serialized_pb).hexdigest()[:16] if file is not None else ""


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a local function that is not defined yet
        return False


def _code(code: CodeType) -> str:
    # repr() of a nested code object holds its address, so constants are walked.
    constants = [_code(c) if isinstance(c, CodeType) else _value(c, ()) for c in code.co_consts]
    return hashlib.sha256(repr((code.co_code, constants, code.co_names)).encode()).hexdigest()[:16]
