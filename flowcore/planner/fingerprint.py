"""Fingerprints: would these operators compute the same thing again?

Two runs of a stage with equal fingerprints over equal sources have equal results, so the second
need not run. Functions count by their code: changed code is another computation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import fields
from types import CodeType

from flowcore.graph.operators import Operator

__all__ = ["fingerprint"]


def fingerprint(operators: Iterable[Operator]) -> str:
    """A SHA-256 digest of what operators compute, as hexadecimal text."""
    return hashlib.sha256("\n".join(map(_describe, operators)).encode()).hexdigest()


def _describe(node: Operator) -> str:
    settings = [
        f"{field.name}={_value(getattr(node, field.name))}"
        for field in fields(node)
        if field.name not in ("inputs", "columns", "bounded", "key", "updating")
    ]
    inputs = ",".join(parent.name for parent in node.inputs)
    return f"{type(node).__name__}({inputs}; {'; '.join(settings)})"


def _value(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{','.join(map(_value, value))}]"
    if hasattr(value, "__dataclass_fields__"):
        inner = ",".join(f"{field.name}={_value(getattr(value, field.name))}" for field in fields(value))  # type: ignore[arg-type]
        return f"{type(value).__name__}({inner})"
    if callable(value):
        code = getattr(value, "__code__", None)
        name = f"{getattr(value, '__module__', '?')}.{getattr(value, '__qualname__', '?')}"
        return f"{name}:{_code(code)}" if isinstance(code, CodeType) else name
    return repr(value)


def _code(code: CodeType) -> str:
    # repr() of a nested code object holds its address, so constants are walked.
    constants = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return hashlib.sha256(repr((code.co_code, constants, code.co_names)).encode()).hexdigest()[:16]
