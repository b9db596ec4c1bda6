"""Thresholds: how many unread records make a source backlog, and how few make it news again?

Two numbers instead of one, so that a source whose lag stays about the same never goes to and fro. Lags are
records of one partition, the one that is furthest behind.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowcore.errors import ConfigurationError

__all__ = ["Thresholds"]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a source is in backlog.

    Args:
        enter: More unread records than this begin it.
        leave: So many or fewer end it; 0 <= leave < enter.

    Raises:
        ConfigurationError: The one is not below the other, or is negative.
    """

    enter: int
    leave: int

    def __post_init__(self) -> None:
        if not 0 <= self.leave < self.enter:
            msg = (
                f"backlog.leave={self.leave} is not below backlog.enter={self.enter}: a query would go "
                "to and fro between catching up and live; pass 0 <= backlog.leave < backlog.enter, in records"
            )
            raise ConfigurationError(msg)

    def backlog(self, lag: int, *, before: bool | None) -> bool:
        """Whether a source is in backlog.

        Args:
            lag: Unread records of the partition that is furthest behind.
            before: Whether it was, None if that is not known.

        >>> Thresholds(100, 10).backlog(50, before=False), Thresholds(100, 10).backlog(50, before=True)
        (False, True)
        """
        return lag > (self.leave if before else self.enter)
