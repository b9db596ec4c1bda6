"""Loader of transcript files.

They are YAML 1.2: only ``true`` and ``false`` are booleans, integers are decimal and keep all 64
bits, and ``yes``, ``1:30`` and ``2024-01-01`` are text. A bare ``min`` or ``max`` is the first or last
time in signed 64 bits, unless it is the name of a field.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.errors import ConfigurationError

__all__ = ["Transcript", "load", "read_yaml"]


@dataclass(frozen=True, slots=True)
class Transcript:
    """One file.

    Attributes:
        name: The law that it shows.
        steps: Actions with their expectations, in order.
        error: The word with which the operator must be refused; None if it must be built.
    """

    path: Path
    name: str
    operator: Mapping[str, Any]
    steps: tuple[Mapping[str, Any], ...]
    error: str | None = None

    @property
    def kind(self) -> str:
        return str(self.operator["kind"])


def load(path: Path) -> Transcript:
    """Read one transcript.

    Raises:
        ConfigurationError: The file is not a transcript.
    """
    found = read_yaml(path)
    match found:
        case {"operator": {"kind": str()} as operator}:
            steps = found.get("steps") or []
        case _:
            msg = f"{path} has no operator with a kind: nothing could be run; add operator.kind"
            raise ConfigurationError(msg)
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        msg = f"{path}: steps is not a list of mappings: nothing could be run; write one '- action:' a step"
        raise ConfigurationError(msg)
    return Transcript(path, str(found.get("name", path.stem)), operator, tuple(steps), found.get("error"))


def read_yaml(path: Path) -> Any:
    """Read a YAML file as transcripts are read.

    Raises:
        ConfigurationError: The file is not YAML.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        msg = f"{path} cannot be read as YAML ({error}): nothing could be read; correct the file"
        raise ConfigurationError(msg) from error


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's name

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        pairs = [
            (key.value if key.tag == _TIME else self.construct_object(key, deep=True), value)
            for key, value in node.value
        ]
        names = [key for key, _ in pairs]
        twice = [key for key in names if names.count(key) > 1]
        if twice:
            problem = f"the field {twice[0]!r} is given twice"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return {key: self.construct_object(value, deep=deep) for key, value in pairs}


_TIME = "!time"
_STARTS = {
    "tag:yaml.org,2002:null": (r"null|~|", ["n", "~", ""]),
    "tag:yaml.org,2002:bool": (r"true|false", list("tf")),
    "tag:yaml.org,2002:int": (r"[-+]?[0-9]+", list("-+0123456789")),
    "tag:yaml.org,2002:float": (r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?",
                                list("-+.0123456789")),
    _TIME: (r"min|max", ["m"]),
}  # fmt: skip
for _tag, (_pattern, _first) in _STARTS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))
_Loader.add_constructor("tag:yaml.org,2002:float", lambda _, node: float(node.value))
_Loader.add_constructor(_TIME, lambda _, node: MIN_TIMESTAMP_MS if node.value == "min" else MAX_TIMESTAMP_MS)
