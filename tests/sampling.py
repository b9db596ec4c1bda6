"""Which cases of a test the default run has; `deploy/check thorough` runs the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["sample"]


def sample(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """The cases of a parameter, or tuples of several, of which all but the kept ones are `thorough`."""
    every = [*cases]
    assert all(each in every for each in kept), f"not all of {kept} are cases"
    return [case if case in kept else _thorough(case) for case in every]


def _thorough(case: Any) -> Any:
    return pytest.param(*case if isinstance(case, tuple) else (case,), marks=pytest.mark.thorough)
