"""Lag thresholds at which one source enters and leaves backlog.

There are two, so that a source with a constant lag does not switch to and fro. A lag is a number of records:
that of the source's partition with the most unread records.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowcore.errors import ConfigurationError

__all__ = ["Thresholds"]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The lags between which a source keeps its status.

    Args:
        enter: A lag above this one begins backlog.
        leave: A lag up to this one ends it; 0 <= leave < enter.

    Raises:
        ConfigurationError: ``leave`` is negative or not below ``enter``.
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

    def in_backlog(self, lag: int, *, before: bool | None) -> bool:
        """Whether a source is in backlog.

        Args:
            lag: Unread records of the partition that has most.
            before: Whether the source was in backlog, None if that is not known.

        >>> Thresholds(100, 10).in_backlog(50, before=False), Thresholds(100, 10).in_backlog(50, before=True)
        (False, True)
        """
        return lag > (self.leave if before else self.enter)
