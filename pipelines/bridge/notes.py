"""Notes: what a person adds to what a plan tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Notes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """Who answers for a flow, and what its parts mean.

    Attributes:
        owners: E-mail addresses, or ``team:name``.
        tags: Put on every asset of the flow.
        descriptions: Markdown by the name of a table or sink; ``"live"`` is that of the live queries.
    """

    owners: Sequence[str] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    descriptions: Mapping[str, str] = field(default_factory=dict)
