"""Text from topics for a terminal."""

__all__ = ["printable"]


def printable(text: str) -> str:
    r"""Replace terminal control characters.

    >>> printable("a\x1b[2Jb")
    'a�[2Jb'
    """
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
