"""Fingerprints of what operators compute.

Two runs of a stage with equal fingerprints over equal sources have equal results, so the second is not
needed. A function counts by its code, by its defaults, closure and bound object, and by the functions,
classes and values of its own package that it uses. A class counts with its bases of its own package. Code of
other packages counts by name, and so do global objects of their classes that have attributes.
"""

import hashlib
import pickle
import re
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cached_property, partial
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
_PARTS = {
    MethodType: ("__self__", "__func__"),
    partial: ("func", "args", "keywords"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    cached_property: ("func",),
}
_VALUES = (tuple, frozenset, list, set, deque, Mapping, Enum, *_PARTS)


def fingerprint_operators(operators: Iterable[Operator]) -> str:
    """A SHA-256 digest of what operators compute, as hexadecimal text."""
    return hashlib.sha256("\n".join(map(_describe, operators)).encode()).hexdigest()


def _describe(node: Operator) -> str:
    describer = _Describer()
    settings = [
        f"{field.name}={describer.describe(getattr(node, field.name))}"
        for field in _counted_fields(node)
        if field.name not in _NOT_COMPUTED
    ]
    inputs = ",".join(parent.name for parent in node.inputs)
    return f"{type(node).__name__}({inputs}; {'; '.join(settings)})"


class _Describer:
    """Makes text of values that differs when they do, and is the same in every process.

    An object that was described before, or contains itself, is its number in the order of description.
    """

    def __init__(self, seen: Mapping[int, tuple[int, object]] | None = None) -> None:
        self.seen = dict(seen or {})  # with the objects, since the address of a lost one is used again

    def describe(self, value: Any) -> str:
        match value:
            case None | bool() | int() | float() | complex() | str() | bytes():
                return repr(value)
            case tuple():
                return self._each(value)
            case frozenset():
                return self._unordered(value)
            case _Named():
                return self._named(value)
        if id(value) in self.seen:
            return f"#{self.seen[id(value)][0]}"
        self.seen[id(value)] = len(self.seen), value
        return self._describe_object(value)

    def _describe_object(self, value: Any) -> str:
        match value:
            case set():
                return self._unordered(value)
            case list() | deque():
                return self._each(value)
            case Mapping():
                return self._named(value)
            case FunctionType():
                return self._function(value)
            case type():
                return self._class(value)
            case ModuleType():
                return value.__name__
        made_of = _made_of(value)
        return _digest(value) if made_of is None else self._each(made_of)

    def _each(self, values: Iterable[object]) -> str:
        return f"[{','.join(map(self.describe, values))}]"

    def _unordered(self, values: Collection[object]) -> str:
        """Sets: their order changes from process to process, so no number depends on it."""
        return f"{{{','.join(sorted(_Describer(self.seen).describe(item) for item in values))}}}"

    def _named(self, values: Mapping[Any, object]) -> str:
        return f"{{{','.join(f'{self.describe(k)}:{self.describe(v)}' for k, v in values.items())}}}"

    def _class(self, kind: type) -> str:
        home = _home(kind)
        own = home not in sys.stdlib_module_names and home != "flowcore"
        members = {
            name: each
            for name, each in vars(kind).items()
            if isinstance(each, FunctionType) or (own and not name.startswith("__") and _counts(each, home))
        }
        bases = [base for base in kind.__mro__[1:] if own and _home(base) == home]
        name = f"{kind.__module__}.{kind.__qualname__}{_definition(kind)}"
        return f"{name}{self._named(members)}{self._each(bases)}"

    def _function(self, function: FunctionType) -> str:
        cells = tuple(cell.cell_contents for cell in function.__closure__ or () if _is_set(cell))
        made_with = self._each((function.__defaults__, _Named(function.__kwdefaults__ or {}), cells))
        found = self._named(dict(_globals(function)))
        return f"{function.__module__}.{function.__qualname__}:{_code(function.__code__)}{made_with}{found}"


class _Named(dict[str, object]):
    """Values by name; the dict itself is no object of the user, so it has no number."""


def _made_of(value: Any) -> tuple[object, ...] | None:
    """What distinguishes an object from others of its class, None for a plain value."""
    for kind, names in _PARTS.items():
        if isinstance(value, kind):
            return kind.__name__, *(getattr(value, name) for name in names)
    if isinstance(value, Enum):
        return None
    if is_dataclass(value):
        # The methods of a user's class count; of flowcore's own classes only the fields do.
        kind = type(value)
        ours = kind.__module__.startswith("flowcore.")
        name = _FORMER_NAMES.get(kind.__name__, kind.__name__) if ours else kind
        return name, _Named({field.name: getattr(value, field.name) for field in _counted_fields(value)})
    state = dict(getattr(value, "__dict__", ()))
    if "__wrapped__" in state:  # as of a cached function
        return (state["__wrapped__"],)
    if hasattr(type(value), "__slots__") and _home(type(value)) not in sys.stdlib_module_names:
        slots = (name for kind in type(value).__mro__ for name in _slots(kind) if hasattr(value, name))
        state |= {name: getattr(value, name) for name in slots}
    elif not hasattr(value, "__dict__"):
        return None
    return type(value), _Named(state) if state else _digest(value)


def _slots(kind: type) -> Iterable[str]:
    slots = vars(kind).get("__slots__", ())
    return [slots] if isinstance(slots, str) else [name for name in slots if not name.startswith("__")]


def _digest(value: Any) -> str:
    """Text of a value without attributes. Its own is shortened, as of a long pattern or array."""
    try:
        content = pickle.dumps(value, 5)
    except Exception:  # noqa: BLE001 - of any class
        return re.sub(" at 0x[0-9a-f]+", "", repr(value))
    return f"{_home(type(value))}.{type(value).__qualname__}:{hashlib.sha256(content).hexdigest()[:16]}"


def _counted_fields(value: Any) -> Iterator[Field[Any]]:
    """The fields that count; one that was added later does not count where it has its default."""
    for field in fields(value):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.metadata != ADDED_LATER or getattr(value, field.name) != default:
            yield field


def _globals(function: FunctionType) -> Iterator[tuple[str, object]]:
    """What a function uses of its own package, also through modules of it, and values without attributes."""
    home, names = _home(function), sorted(_names(function.__code__))
    scopes: dict[str, Mapping[str, object]] = {"": function.__globals__}
    waiting = [""]
    for scope in waiting:
        for name in names:
            value = scopes[scope].get(name)
            if not isinstance(value, ModuleType):
                if name in scopes[scope] and _counts(value, home):
                    yield f"{scope}.{name}", value
            elif value.__name__.partition(".")[0] == home and value.__name__ not in scopes:
                scopes[value.__name__] = vars(value)
                waiting.append(value.__name__)


def _counts(value: object, home: str) -> bool:
    """Whether a value that a function or class of a package uses counts by more than its name."""
    return isinstance(value, _VALUES) or _home(value) == home or not hasattr(value, "__dict__")


def _home(value: object) -> str:
    """The package of a function, a class, or an object's class."""
    return str(getattr(value, "__module__", None) or "").partition(".")[0]


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
    constants = [_code(c) if isinstance(c, CodeType) else _Describer().describe(c) for c in code.co_consts]
    return hashlib.sha256(repr((code.co_code, constants, code.co_names)).encode()).hexdigest()[:16]
