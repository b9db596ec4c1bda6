"""Runner of transcripts of kind ``bundle``: bundles of a number of elements, as in Flink's bundle operator.

A bundle is finished after a number of elements, whatever their keys, and at the end of the input.
"""

import json
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypeVar

from flowcore.errors import ConfigurationError
from flowcore.testing.transcripts.runner import fail_unknown, refusing

__all__ = ["Bundle", "BundleRunner", "Finished"]

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

Finished = Mapping[_K, list[_V]]
"""The values of each key of a finished bundle, in order of arrival; empty if none was finished."""


@dataclass(slots=True)
class Bundle(Generic[_K, _V]):
    """A bundle that is being filled.

    Args:
        count: The number of elements of a bundle, > 0.

    Attributes:
        values: The values of each key, in order of arrival.

    Raises:
        ConfigurationError: The count is not positive.

    >>> bundle = Bundle(2)
    >>> bundle.add("a", 1)
    {}
    >>> bundle.add("a", 2)
    {'a': [1, 2]}
    """

    count: int
    values: dict[_K, list[_V]] = field(default_factory=dict)
    finished: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            msg = f"count={self.count} is not positive: no bundle would be finished; pass count > 0"
            raise ConfigurationError(msg)

    def add(self, key: _K, value: _V) -> Finished[_K, _V]:
        """Add an element; the last element of a bundle finishes it."""
        self.values.setdefault(key, []).append(value)
        return self.finish() if sum(map(len, self.values.values())) >= self.count else {}

    def finish(self) -> Finished[_K, _V]:
        """Finish the bundle, as at the end of the input; an empty bundle does not count."""
        values, self.values = self.values, {}
        self.finished += bool(values)
        return values


class BundleRunner:
    def __init__(self, operator: Mapping[str, Any]) -> None:
        with refusing(ConfigurationError):
            self._bundle: Bundle[str, Any] = Bundle(operator["count"])

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        out: list[list[Any]] = []
        match action:
            case "in":
                for key, value, *_timestamp_ms in argument:
                    out += _rows(self._bundle.add(json.dumps(key, sort_keys=True), value))
            case "end_of_input":
                out += _rows(self._bundle.finish())
            case "restart":
                self._bundle = Bundle(**json.loads(json.dumps(asdict(self._bundle))))
            case "watermark_ms" | "processing_time_ms":  # a bundle does not depend on time
                pass
            case _:
                fail_unknown("bundles", action)
        return {"out": out, "finished": self._bundle.finished}


def _rows(finished: Finished[str, Any]) -> list[list[Any]]:
    return [[json.loads(key), ",".join(map(_text, values)), None] for key, values in finished.items()]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
