"""Files of JSON that flowcore has written, and that a disk or a person may have changed since."""

import json
import stat
from pathlib import Path
from typing import Any

__all__ = ["read_json"]

_MOST_BYTES = 64 << 20


def read_json(path: Path, most_bytes: int = _MOST_BYTES) -> Any:
    """Read a file.

    Raises:
        OSError: The file is missing, or cannot be read.
        ValueError: It is not JSON, is nested too deep, or is longer than anything that flowcore writes.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        msg = "it is not a file"
        raise ValueError(msg)
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        msg = f"it has more than {most_bytes:,} bytes"
        raise ValueError(msg)
    try:
        return json.loads(content)
    except RecursionError as error:
        msg = "it is nested too deep"
        raise ValueError(msg) from error
