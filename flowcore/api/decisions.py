"""Decisions of a plan about an operator, a stage or an edge: outcomes with their reasons."""

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Decision", "Obstacle"]


@dataclass(frozen=True, slots=True)
class Decision:
    """An outcome and why it was chosen.

    Attributes:
        change: What a user could change to get the faster outcome, if there is one.
    """

    value: str
    reasons: tuple[str, ...]
    change: tuple[str, ...] = ()


class Obstacle(NamedTuple):
    """Why something is not possible; ``change`` is what would make it possible, empty if nothing would."""

    why: str
    change: str = ""
