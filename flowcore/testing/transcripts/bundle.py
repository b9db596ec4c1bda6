"""Runner of transcripts of kind ``bundle``: a bundle of counted records, in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flowcore.errors import ConfigurationError
from flowcore.flush.bundle import Bundle, CountBundle, Finished, add, finish, restore, snapshot
from flowcore.testing.transcripts.runner import fail_unknown, refusing

__all__ = ["BundleRunner"]


class BundleRunner:
    def __init__(self, operator: Mapping[str, Any]) -> None:
        with refusing(ConfigurationError):
            self._config = CountBundle(operator["count"])
        self._bundle: Bundle[str, Any] = Bundle()

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        out: list[list[Any]] = []
        match action:
            case "in":
                for key, value, *_timestamp_ms in argument:
                    out += _rows(add(self._config, self._bundle, json.dumps(key, sort_keys=True), value))
            case "end_of_input":
                out += _rows(finish(self._bundle))
            case "restart":
                self._bundle = restore(json.loads(json.dumps(snapshot(self._bundle))))
            case "watermark_ms" | "processing_time_ms":  # a bundle does not depend on time
                pass
            case _:
                fail_unknown("bundles", action)
        return {"out": out, "finished": self._bundle.finished}


def _rows(finished: Finished[str, Any]) -> list[list[Any]]:
    return [[json.loads(key), ",".join(map(_text, values)), None] for key, values in finished.items()]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
