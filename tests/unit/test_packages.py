"""Rules for every package of the project."""

import importlib
import pkgutil
from types import ModuleType

import pytest

import flowcore
import pipelines


def test_no_module_takes_the_place_of_a_public_name() -> None:
    """Importing ``flowcore.x`` sets ``flowcore.x``, even if a function has that name."""
    modules = [flowcore, pipelines]
    for top in tuple(modules):
        found = pkgutil.walk_packages(top.__path__, f"{top.__name__}.")
        modules += [importlib.import_module(each.name) for each in found if "__main__" not in each.name]

    hidden = [
        f"{module.__name__}.{name}"
        for module in modules
        for name in getattr(module, "__all__", ())
        if isinstance(getattr(module, name), ModuleType)
    ]

    assert hidden == []


def test_public_names_are_imported_when_they_are_used() -> None:
    """Each one is found, and a wrong name is an error as of any module."""
    assert {name for name in flowcore.__all__ if getattr(flowcore, name).__name__ != name} == set()
    assert set(flowcore.__all__) <= set(dir(flowcore))
    with pytest.raises(AttributeError, match="module 'flowcore' has no attribute 'Kafka'"):
        flowcore.Kafka  # noqa: B018
