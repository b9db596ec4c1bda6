"""The seam between transcripts and what they are run on: runners, and the kinds that build them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["COMMON_ACTIONS", "Refused", "Runner", "TranscriptKind"]

COMMON_ACTIONS = frozenset({"in", "watermark_ms", "processing_time_ms", "restart", "end_of_input"})


class Refused(Exception):  # noqa: N818 - it is an answer, not an error
    """What was asked is refused, as a transcript may expect.

    Args:
        word: The README's word for it, for instance ``"invalid-argument"``.
    """

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


class Runner(Protocol):
    """One operator in the course of one transcript."""

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        """Do one step and say what was seen.

        Args:
            action: The step's action, for instance ``"in"`` or ``"watermark_ms"``.
            argument: What the step says about it, as read from the file.

        Returns:
            What was seen, by the names of the README's expectations.

        Raises:
            Refused: The action is refused; nothing has changed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptKind:
    """How transcripts of one kind are run.

    Attributes:
        name: The file's ``operator.kind``.
        actions: Names of actions that this kind has beyond `COMMON_ACTIONS`.
        build: A runner from the file's ``operator`` section; raises `Refused` where building fails.
        in_order: What ``out`` shows is a list in order, in which ``{any_order: [...]}`` stands for the next
            few in any order; if not, it is a multiset.
        agrees: Whether what was seen meets one expectation: its name, what is expected, all that was
            seen in this step. None stands for "compare as usual".
    """

    name: str
    build: Callable[[Mapping[str, Any]], Runner]
    actions: frozenset[str] = frozenset()
    in_order: bool = False
    agrees: Callable[[str, Any, Mapping[str, Any]], bool | None] = lambda *_: None
    close: Callable[[Any], None] = lambda _: None
