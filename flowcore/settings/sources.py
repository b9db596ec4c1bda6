"""Sources of settings: a file, the environment, and a mapping.

Each function yields ``(key, value, source)``. Keys and values are checked in `flowcore.settings.typed`.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flowcore.errors import SettingsError

__all__ = ["FILE_VARIABLE", "from_environment", "from_file", "from_mapping"]

FILE_VARIABLE = "FLOWCORE_SETTINGS"
"""The environment variable that names the file of settings."""

_Entry = tuple[str, Any, str]


def from_file(path: Path) -> Iterator[_Entry]:
    """Settings of a TOML file, in tables or with whole keys in quotes.

    Raises:
        SettingsError: The file cannot be read, or sets a key twice.
    """
    try:
        import tomllib  # noqa: PLC0415 - most runs have no file

        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        # What names no file may be the content of one, with secrets.
        shown = "" if isinstance(error, OSError) and {"=", "\n"} & {*str(path)} else f" {path}"
        msg = (
            f"settings file{shown} cannot be read: {why}: the run would have other settings than meant; "
            "pass the path of a TOML file, with lines such as execution.trigger-interval = '2 s'"
        )
        raise SettingsError(msg) from error
    yield from from_mapping(tables, f"file {path}")


def from_mapping(mapping: Mapping[str, Any], origin: str) -> Iterator[_Entry]:
    """Settings of a mapping; inner mappings are tables.

    Raises:
        SettingsError: A key is set twice.
    """
    seen: set[str] = set()
    for key, value in _leaves(mapping, ""):
        if key in seen:
            msg = (
                f"setting {key} is given twice (from {origin}), in a table and by its whole key: one would "
                "have no effect; keep one"
            )
            raise SettingsError(msg)
        seen.add(key)
        yield key, value, origin


def from_environment(environment: Mapping[str, str], keys: Iterable[str]) -> Iterator[_Entry]:
    """Settings of variables named ``FLOWCORE_PIPELINE_...`` or exactly like a key; the first form wins.

    Other programs may have variables that begin with ``FLOWCORE_`` (a cluster names services that way), so a
    variable that names no setting is an error only if its name is close to that of a setting.

    Raises:
        SettingsError: The name of a variable is close to that of a setting.
    """
    keys = tuple(keys)
    names = dict(zip(keys, keys, strict=True))
    names |= {f"FLOWCORE_{re.sub('[.-]', '_', key).upper()}": key for key in keys}
    for name in environment:
        if name in names or name == FILE_VARIABLE or not ("." in name or name.startswith("FLOWCORE_")):
            continue
        near = difflib.get_close_matches(name, [*names, FILE_VARIABLE], n=1, cutoff=0.85)
        if near:
            msg = (
                f"setting {name} does not exist (from the environment): it would have no effect; did you "
                f"mean {near[0]!r}?"
            )
            raise SettingsError(msg)
    for name, key in names.items():
        if name in environment:
            yield key, environment[name], f"environment variable {name}"


def _leaves(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
