"""Key groups that collect changes: what a step has changed is emitted once between two control elements."""

from flowcore.elements import RecordAttributes, WatermarkStatus
from flowcore.keyed.operator import KeyGroup, StepOutputs

__all__ = ["CollectingGroup"]


class CollectingGroup(KeyGroup):
    """Emits at the end of a step, and before a control element in it; a base class."""

    def emit_changes(self, out: StepOutputs) -> None:
        """Emit what the records since the last call have changed."""
        raise NotImplementedError

    def advance_watermark(self, watermark_ms: int, out: StepOutputs) -> None:  # noqa: ARG002 - results have no time
        """Emit what records before the watermark have changed."""
        self.emit_changes(out)

    def attributes(self, attributes: RecordAttributes, out: StepOutputs) -> None:  # noqa: ARG002 - later rows have them
        """Emit what records before the attributes have changed."""
        self.emit_changes(out)

    def status(self, status: WatermarkStatus, out: StepOutputs) -> None:  # noqa: ARG002 - of the input
        """Emit what records before the status have changed."""
        self.emit_changes(out)

    def finish(self, out: StepOutputs, *, idle: bool) -> None:  # noqa: ARG002 - without input nothing changes
        """Emit what the last records have changed."""
        self.emit_changes(out)
