"""Errors keep class and message through pickling, as Spark's workers send them."""

from __future__ import annotations

import pickle

import pytest

from flowcore import errors

CLASSES = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("error", CLASSES, ids=errors.__all__)
def test_errors_survive_pickling(error: type[errors.FlowcoreError]) -> None:
    """They are unpickled unchanged."""
    found = pickle.loads(pickle.dumps(error("what was given, what is wrong")))  # noqa: S301 - our own

    assert type(found) is error
    assert str(found) == "what was given, what is wrong"


@pytest.mark.parametrize("error", CLASSES, ids=errors.__all__)
def test_errors_are_drawn_in_the_tree(error: type[errors.FlowcoreError]) -> None:
    """The tree in the module's docstring is complete."""
    assert issubclass(error, errors.FlowcoreError)
    assert error.__name__ in (errors.__doc__ or "")


def test_errors_are_all_listed() -> None:
    """Every error can be imported by name."""
    defined = {
        name
        for name, found in vars(errors).items()
        if isinstance(found, type) and issubclass(found, Exception)
    }

    assert defined == set(errors.__all__)
