"""Runners of transcripts: the contract of a runner, and the declaration of a kind."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from flowcore.errors import ConfigurationError

__all__ = ["COMMON_ACTIONS", "Refused", "Runner", "TranscriptKind", "fail_unknown", "refusing"]

COMMON_ACTIONS = frozenset({"in", "watermark_ms", "processing_time_ms", "restart", "end_of_input"})


class Refused(Exception):  # noqa: N818 - it is an answer, not an error
    """The operator refuses a step or its configuration, which a transcript may expect.

    Args:
        word: The README's word for it, for instance ``"invalid-argument"``.
    """

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


@contextmanager
def refusing(error: type[Exception], word: str = "invalid-argument") -> Iterator[None]:
    """Turn an error of the operator into `Refused`."""
    try:
        yield
    except error as refusal:
        raise Refused(word) from refusal


def fail_unknown(subject: str, action: str) -> NoReturn:
    """Raise the error for an action that a kind of transcripts does not have."""
    msg = f"transcripts of {subject} have no action {action!r}: nothing would be done; remove it"
    raise ConfigurationError(msg)


class Runner(Protocol):
    """One operator during one transcript."""

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        """Perform one step.

        Args:
            action: The step's action, for instance ``"in"`` or ``"watermark_ms"``.

        Returns:
            The observations, by the README's names of expectations.

        Raises:
            Refused: The operator refuses the action; nothing has changed.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptKind:
    """How transcripts of one kind are replayed.

    Attributes:
        build: Makes a runner from the file's ``operator`` section; raises `Refused` where building fails.
        actions: The actions of this kind in addition to `COMMON_ACTIONS`.
        in_order: ``out`` is a list in order, in which ``{any_order: [...]}`` stands for its items in any
            order; if not, ``out`` is a multiset.
        agrees: Compares one expectation: its name, the expected value, all observations of the step. None
            stands for the usual comparison.
        close: Releases what a runner holds.
    """

    build: Callable[[Mapping[str, Any]], Runner]
    actions: frozenset[str] = frozenset()
    in_order: bool = False
    agrees: Callable[[str, Any, Mapping[str, Any]], bool | None] = lambda *_: None
    close: Callable[[Any], None] = lambda _: None
