"""What Spark's log makes of a message that quotes data, by the patterns of its layout."""

from __future__ import annotations

import re
from pathlib import Path

from flowcore.spark.run import session

_REPLACE = re.compile(r"\{([^{}]+)\}\{([^{}]+)\}\}?")


def _layout() -> str:
    """The value of the layout's pattern, as Java reads properties."""
    text = Path(session.__file__).with_name("log4j2.properties").read_text()
    written = re.search(r"layout\.pattern = ((?:.*\\\n)*.*)\n", text)
    assert written is not None
    joined = re.sub(r"\\\n\s*", "", written[1])
    return re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), joined)


def _logged(entry: str) -> str:
    """A message with its trace as the log has it."""
    _, inner, replaced = _layout().partition("%m%n%ex}")
    assert inner, "message and trace are not replaced"
    for pattern, by in _REPLACE.findall(replaced):
        entry = re.sub(pattern, by, entry)
    return entry


def test_log_has_nothing_that_a_terminal_obeys() -> None:
    """Controls of both ranges, and what reorders text; tabs and other letters stay."""
    assert (
        _logged("a\x1b[2Jb\x9b2J\x00\r\x7f\u202e\u200fc\td\xa0\u017c\n") == "a?[2Jb?2J?????c\td\xa0\u017c\n"
    )


def test_lines_of_a_message_and_a_trace_do_not_look_like_entries() -> None:
    """An entry begins with its time; the lines of a trace are still lines."""
    forged = "bids[0]@7 holds: x\n2026-01-01 00:00:00.000 INFO Forged: y\n"
    trace = "java.lang.Error: z\n\tat a.b\n\nCaused by: c\n"

    lines = _logged(forged + trace).split("\n")

    assert lines == [
        "bids[0]@7 holds: x", "  2026-01-01 00:00:00.000 INFO Forged: y", "  java.lang.Error: z",
        "  \tat a.b", "", "  Caused by: c", "",
    ]  # fmt: skip
