r"""Make text from data safe for each place where flowcore shows it.

Names of topics, channels and operators, keys, values, reasons and error texts come from data or from
strangers. Each view uses the function of its format here: a terminal (`printable`, `printable_lines`), HTML
and SVG (`html_text`), Mermaid (`mermaid_text`), Markdown (`markdown_code`, `markdown_block`). JSON needs
none: Python's encoder writes ASCII.

All functions show invisible characters as Python's escapes: controls of a terminal, those that reorder text,
and those without width. `storable` and `show_safely` are for texts of users' code, before they are stored.
"""

import html
import re
from collections.abc import Callable
from typing import Any

__all__ = [
    "html_text", "markdown_block", "markdown_code", "mermaid_text", "printable", "printable_lines",
    "show_safely", "storable",
]  # fmt: skip

# `str.isprintable` counts them as printable, and they draw nothing: fillers, joiners, variation selectors.
_INVISIBLE = frozenset(
    chr(code)
    for first, last in (
        (0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x3164, 0x3164),
        (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xE0100, 0xE01EF),
    )
    for code in range(first, last + 1)
)  # fmt: skip
# What ends a quoted label of Mermaid, or begins an entity, a tag, Markdown, a directive or a formula in it.
_MERMAID = str.maketrans({character: f"#{ord(character)};" for character in '#&"<>`%$'})


def printable(text: str) -> str:
    r"""Show invisible characters and line breaks as escapes, for one line of a terminal.

    >>> printable("a\x1b[2Jb\u202e\n")
    'a\\x1b[2Jb\\u202e\\n'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if _is_visible(letter) else _escape(letter) for letter in text)


def printable_lines(text: str) -> str:
    r"""Show invisible characters as escapes and keep the lines, for messages and plans.

    >>> printable_lines("one\n\ttwo\x07\r\n").splitlines()
    ['one', '    two\\x07\\r']
    """
    return "\n".join(map(printable, text.expandtabs(4).split("\n")))


def html_text(text: str) -> str:
    """Text of an HTML or SVG element or of its quoted attribute.

    >>> html_text('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return html.escape(printable(text))


def mermaid_text(text: str) -> str:
    """Text between the quotes of a Mermaid label.

    >>> mermaid_text('"] --> x')
    '#34;] --#62; x'
    """
    return printable(text).translate(_MERMAID)


def markdown_code(text: str, *, cell: bool = False) -> str:
    r"""Text as a code span, in which Markdown knows neither HTML nor links.

    Args:
        cell: It is in a table, whose cells end at an unescaped ``|``.

    >>> markdown_code("[a](b)"), markdown_code("`|`", cell=True)
    ('`[a](b)`', '`` `\\|` ``')
    """
    shown = printable(text)
    if cell:
        # Backslashes before a bar are pairs, of which none escapes the bar's own.
        shown = re.sub(r"(\\*)\|", r"\1\1\\|", shown)
    fence = _fence(shown, shortest=1)
    # A span needs some text, and one that begins or ends with a backtick or space needs spaces around it.
    pad = " " if not shown.strip(" ") or shown[0] in "` " or shown[-1] in "` " else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def markdown_block(text: str) -> str:
    """Lines of text as a fenced block of code.

    >>> print(markdown_block("one"))
    ```
    one
    ```
    """
    shown = printable_lines(text)
    fence = _fence(shown, shortest=3)
    return f"{fence}\n{shown}\n{fence}"


def _fence(text: str, shortest: int) -> str:
    """More backticks than follow each other anywhere in the text."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    return "`" * max(longest + 1, shortest)


def _is_visible(letter: str) -> bool:
    return letter.isprintable() and letter not in _INVISIBLE


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def storable(text: str) -> str:
    r"""A text that can be written as UTF-8: what Python alone can hold is escaped.

    >>> storable("a\ud83d")
    'a\\ud83d'
    """
    return text.encode("utf-8", "backslashreplace").decode()


def show_safely(show: Callable[[Any], str], value: Any) -> str:
    """A text of a value or an error of a user's code; the name of its type if that raises.

    >>> show_safely(repr, 10**5000)
    '<int>'
    """
    try:
        return storable(show(value))
    except Exception:  # noqa: BLE001 - any class of a user's may raise anything
        return f"<{type(value).__name__}>"
