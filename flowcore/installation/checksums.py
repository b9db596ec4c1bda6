"""SHA-256 of every jar that flowcore brings, pinned in `jars.sha256` beside this file.

`deploy/pin_jars.py` writes that file.

A jar is code that runs with a flow's passwords. So jars are compared after their download, and once in each
process that uses them. The connector's 10 MB take 0.04 s and the broker's 45 MB 0.13 s, so that no result is
remembered on disk, where it could be changed too.
"""

import hashlib
from functools import cache
from pathlib import Path

__all__ = ["find_unpinned", "pinned_jars"]

_PINS = Path(__file__).with_name("jars.sha256")


def pinned_jars() -> dict[str, str]:
    """The SHA-256 of each jar, by ``configuration/name``."""
    lines = (line.split() for line in _PINS.read_text().splitlines())
    return {path: digest for digest, path, _coordinates in lines}


def find_unpinned(folder: Path, configuration: str) -> str | None:
    """Say what is wrong with a jar that is missing, was added or has other content; None if there is none.

    Args:
        folder: Has a sub-folder for each configuration.
    """
    pins = {name: pin for name, pin in pinned_jars().items() if name.startswith(f"{configuration}/")}
    found = {f"{configuration}/{path.name}": path for path in (folder / configuration).glob("*.jar")}
    for name in sorted(pins.keys() ^ found.keys()):
        return f"{name} is {'missing' if name in pins else 'not one of its jars'}"
    for name, path in found.items():
        entry = path.stat()
        digest = _digest(path, entry.st_size, entry.st_mtime_ns)
        if digest != pins[name]:
            return f"{name} has the SHA-256 {digest}, not {pins[name]}"
    return None


@cache
def _digest(path: Path, size: int, mtime_ns: int) -> str:  # noqa: ARG001 - a changed file is read again
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
