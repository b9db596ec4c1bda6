"""Inputs: is what a query reads history or news, over all that it reads?

Its inputs are the bounded results that it joins and the sources that it reads, each a channel by its
name. A result is backlog until it is committed, a source while it lags (`flowcore.backlog.thresholds`).
"""

from __future__ import annotations

from collections.abc import Iterable

from flowcore.backlog.channels import hear, start
from flowcore.elements import RecordAttributes

__all__ = ["Inputs"]


class Inputs:
    """What the inputs of one query have said.

    Args:
        pending: Names of the bounded results that it joins; until they are committed they are backlog.
        sources: Names of the sources that it reads; nothing is known of them yet.

    >>> inputs = Inputs(["catalog"], ["bids"])
    >>> inputs.backlog
    True
    >>> inputs.tell("catalog", backlog=False), inputs.tell("bids", backlog=False)
    (None, RecordAttributes(backlog=False))
    """

    def __init__(self, pending: Iterable[str], sources: Iterable[str]) -> None:
        pending = tuple(pending)
        self._numbers = {name: number for number, name in enumerate((*pending, *sources))}
        self._channels = start(len(self._numbers))
        for name in pending:
            self.tell(name, backlog=True)

    @property
    def backlog(self) -> bool | None:
        """What was told downstream last, None if nothing."""
        return self._channels.told

    def tell(self, name: str, *, backlog: bool) -> RecordAttributes | None:
        """One input is in backlog or not: what is to be told downstream, if that changes."""
        said = RecordAttributes(backlog)
        self._channels, told = hear(self._channels, self._numbers[name], said)
        return told
