"""Reporting: who is told how a live run is doing, and how often?"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from flowcore.background import Repeating
from flowcore.metrics.progress import FlowProgress

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["ProgressListener", "Reporter"]

_log = logging.getLogger(__name__)


class ProgressListener(Protocol):
    """Told of each look at a run, by one thread at a time."""

    def progressed(self, progress: FlowProgress) -> None:
        """The run is like this now."""


class Reporter:
    """Looks at a run in an interval and tells listeners; a context manager with one thread.

    It looks once more at the end. A look or a listener that fails is logged, and neither stops the run
    nor the other listeners.

    Args:
        look: Looks at the run.
        listeners: Are told, in this order.
        interval_s: Seconds between two looks.
    """

    def __init__(
        self, look: Callable[[], FlowProgress], listeners: Sequence[ProgressListener], interval_s: float
    ) -> None:
        self._look = look
        self._listeners = listeners
        self._looking = Repeating("progress", self._tell, interval_s, at_once=True)

    def __enter__(self) -> Self:
        self._looking.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._looking.__exit__(kind, error, trace)
        self._tell()

    def _tell(self) -> None:
        try:
            progress = self._look()
        except Exception:  # noqa: BLE001 - whatever it is, records go on
            _log.exception("the run cannot be looked at; it goes on")
            return
        for listener in self._listeners:
            try:
                listener.progressed(progress)
            except Exception:  # noqa: BLE001 - it is anybody's code
                _log.exception("%s was not told how the run is doing", type(listener).__name__)
