"""Functions of users for tests of plans, which call none of them."""

from typing import Any

from flowcore import KeyedProcessFunction, RichFunction

__all__ = ["IdleProcess", "IdleRich"]


class IdleProcess(KeyedProcessFunction):
    """Processes nothing."""

    def process(self, record: Any, context: Any) -> None:
        """Emit nothing."""


class IdleRich(RichFunction):
    """Passes its first argument on."""

    def __call__(self, record: Any, *_others: Any) -> Any:
        return record
