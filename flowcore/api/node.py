"""What every operator of a flow has, whatever it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from flowcore.api.attributes import OperatorAttributes

if TYPE_CHECKING:
    from flowcore.api.operators import Operator

__all__ = ["Node"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Node:
    """What every operator has.

    Attributes:
        name: Unique in its flow.
        inputs: The operators it reads, left one first.
        columns: Names of its output columns, in order.
        bounded: Its input ends.
        key: The columns of which the latest record replaces earlier ones, None if there are none.
        updating: A later output with the same key replaces an earlier one.
        declared_attributes: The attributes that were declared with it, by name.
        flush_ms: How long its output may be held back, 0 for not at all; None for what the run's settings
            say.
    """

    name: str
    inputs: tuple[Operator, ...]
    columns: tuple[str, ...]
    bounded: bool
    key: tuple[str, ...] | None = None
    updating: bool = False
    declared_attributes: Mapping[str, bool] = field(default_factory=dict)
    flush_ms: int | None = None

    def attributes(self) -> OperatorAttributes:
        """What it promises: what was declared with it, else what it knows of itself, else what is safe."""
        known = {**self.known(), **self.declared_attributes}
        # Nobody can take back that there is nothing to put out before the end.
        at_end = known.get("output_only_at_end", False) or self.known().get("output_only_at_end", False)
        return OperatorAttributes(**{**known, "output_only_at_end": at_end})

    def known(self) -> Mapping[str, bool]:
        """What it knows of itself: for one made of Spark's own operators, everything."""
        return {
            "output_only_at_end": False,
            "output_on_checkpoint": False,
            "output_value_stored": False,
            "input_record_stored": False,
            "output_idempotent": self.updating and self.key is not None,
        }

    def unknown(self) -> tuple[str, ...]:
        """The attributes for which the safe default is taken, because nobody has declared them."""
        known = {*self.known(), *self.declared_attributes}
        return tuple(each.name for each in fields(OperatorAttributes) if each.name not in known)
