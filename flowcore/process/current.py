"""What it is about now: which key, which record or timer, and what has come out so far?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowcore.errors import StateError
from flowcore.process.results import ProcessEmissions, ProcessResult
from flowcore.process.state import ProcessState
from flowcore.process.undo import Undo

__all__ = ["Current"]


class Current:
    """Shared by an operator, its function's context and its states.

    Attributes:
        state: Of all keys.
        emissions: What this step made come out.
        timestamp_ms: Of the record or timer, None if it has none.
        timestamps_ms: Of the rows of a batch.
        origin: Which record of the step it is, None for a timer and for a batch.
        undo: Where the call notes what it looks at, None where it is never taken back.
    """

    __slots__ = ("_key", "_nobody", "emissions", "origin", "state", "timestamp_ms", "timestamps_ms", "undo")

    def __init__(self) -> None:
        self.undo: Undo | None = None
        self.begin(ProcessState())

    def begin(self, state: ProcessState, timestamps_ms: Sequence[int | None] = ()) -> ProcessEmissions:
        """A new step, at first of no key."""
        self.state = state
        self.emissions = ProcessEmissions()
        self.timestamps_ms = timestamps_ms
        self.timestamp_ms: int | None = None
        self.origin: int | None = None
        self._key: Any = None
        self._nobody = True
        return self.emissions

    @property
    def key(self) -> Any:
        """The key at hand.

        Raises:
            StateError: There is none.
        """
        if self._nobody:
            msg = (
                "a state or a timer was asked for where there is no key: it would be nobody's; ask in "
                "process() or on_timer(), and in process_batch() set context.key first"
            )
            raise StateError(msg)
        return self._key

    @key.setter
    def key(self, key: Any) -> None:
        self._key, self._nobody = key, False
        self.state.touched.add(key)
        if self.undo is not None:
            self.undo.key(key)

    def result(self, record: Any) -> ProcessResult:
        """An output that is made of what is at hand."""
        return ProcessResult(self.key, record, self.timestamp_ms, self.origin)
