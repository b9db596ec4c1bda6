"""The console of commands that print tables."""

from rich.console import Console

__all__ = ["make_console"]

_WIDTH = 10_000
"""Where there is no terminal, no column of a table is cut: a script or a file has no width."""


def make_console(*, stderr: bool = False) -> Console:
    """A console as wide as its terminal, or as its tables where there is none."""
    console = Console(stderr=stderr)
    if not console.is_terminal:
        console.width = _WIDTH
    return console
