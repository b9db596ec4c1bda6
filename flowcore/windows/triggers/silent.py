"""What a trigger does that does nothing: the answers that most triggers give to most questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from flowcore.windows.triggers.trigger import TriggerContext, TriggerResult

__all__ = ["Never"]


@dataclass(frozen=True, slots=True)
class Never:
    """Never emits; what windows without an end have if they are given nothing else.

    Other triggers inherit the answers that they do not give themselves.
    """

    mergeable: ClassVar[bool] = True

    def on_element(self, value: Any, timestamp_ms: int | None, context: TriggerContext) -> TriggerResult:  # noqa: ARG002 - a trigger's signature
        """Nothing."""
        return TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:  # noqa: ARG002
        """Nothing."""
        return TriggerResult.CONTINUE

    def on_processing_time(self, time_ms: int, context: TriggerContext) -> TriggerResult:  # noqa: ARG002
        """Nothing."""
        return TriggerResult.CONTINUE

    def on_merge(self, states: Sequence[Any], context: TriggerContext) -> None:
        """Nothing is kept."""
