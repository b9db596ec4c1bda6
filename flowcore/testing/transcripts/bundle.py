"""Runner of transcripts of kind ``bundle``: a bundle of counted records, in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from flowcore.errors import ConfigurationError
from flowcore.testing.bundles import Bundle, Finished
from flowcore.testing.transcripts.runner import fail_unknown, refusing

__all__ = ["BundleRunner"]


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
