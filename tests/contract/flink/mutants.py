"""Transcripts with one expectation spoiled each, so that an exact comparison disagrees with all of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["KINDS", "mutants_of"]

KINDS = ("window", "watermarks", "session-merge", "bundle")
"""The kinds of transcripts that Flink has a counterpart of."""

_EXPECTATIONS = (
    "out", "late", "dropped", "emits", "error", "into", "current_ms", "finished", "window", "state",
    "merged", "merged_states", "merged_states_count", "live",
)  # fmt: skip
_ADDED: Mapping[str, Any] = {
    "out": [["zz", 1, 1]],
    "late": [["zz", 1, 1]],
    "dropped": 1,
    "emits": [{"watermark": 12345}],
    "error": "no-timestamp",
    "into": [{"window": [0, 1], "of": [[0, 1]]}],
}
"""Expectations that are added to steps without them, where a missing one means that nothing happens."""


def mutants_of(name: str, transcript: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the mutants of one transcript, each with a name that says what was spoiled."""
    if "error" in transcript:
        yield f"{name}#error", {key: value for key, value in transcript.items() if key != "error"}
    for number, step in enumerate(transcript["steps"], 1):
        for field in _EXPECTATIONS:
            if field in step:
                values = list(_spoil(step[field]))
            elif field in _ADDED:
                values = [_ADDED[field]]
            else:
                continue
            for index, value in enumerate(values):
                if field in {"out", "late"} and _lacks_windows_only(step.get(field), value):
                    continue
                mutant = copy.deepcopy(dict(transcript))
                mutant["steps"][number - 1][field] = value
                yield f"{name}#{number}.{field}.{index}", mutant


def _spoil(value: Any) -> Iterator[Any]:
    """Yield all values that differ from this one in one leaf or by one missing member."""
    if isinstance(value, int):
        yield value - 1 if value > 0 else value + 1
    elif isinstance(value, str):
        yield value + "!"
    elif value is None:
        yield 0
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield [*value[:index], *value[index + 1 :]]
            for other in _spoil(item):
                yield [*value[:index], other, *value[index + 1 :]]
    else:
        for key, item in value.items():
            for other in _spoil(item):
                yield {**value, key: other}


def _lacks_windows_only(rows: Any, spoiled: Any) -> bool:
    """A row's window is compared only if it is written: a row without it is not spoiled."""
    if not rows or len(rows) != len(spoiled):
        return False
    return all(after in (row, row[:3]) for row, after in zip(rows, spoiled, strict=True))
