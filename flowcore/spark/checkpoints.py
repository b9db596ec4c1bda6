"""Checkpoints: how far in its topics has a query come, as its checkpoint tells?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

__all__ = ["latest_offsets"]


def latest_offsets(
    checkpoint: Path, log: Literal["offsets", "commits"] = "offsets"
) -> dict[str, dict[int, int]]:
    """By topic and partition the first offset that the batch after the last one reads.

    Args:
        checkpoint: The folder of the checkpoint; nothing is known if it does not exist.
        log: The last batch that was planned (``offsets``), or that was committed.
    """
    numbers = (int(file.name) for file in (checkpoint / log).glob("*") if file.name.isdigit())
    latest = max(numbers, default=None)
    if latest is None:
        return {}
    found: dict[str, dict[int, int]] = {}
    for line in (checkpoint / "offsets" / str(latest)).read_text().splitlines()[2:]:
        offsets = json.loads(line) if line.startswith("{") else {}
        for topic, partitions in offsets.items():
            found[topic] = {int(number): offset for number, offset in partitions.items()}
    return found
