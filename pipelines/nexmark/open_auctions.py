"""Windows of auctions: each lasts from the opening of an auction until it expires."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from flowcore.windows.window import TimeWindow

__all__ = ["OpenAuctions"]


@dataclass(frozen=True)
class OpenAuctions:
    """An assigner for records with the times ``opened`` and ``expires`` of an auction, both inclusive."""

    merging: ClassVar[bool] = False
    bounded: ClassVar[bool] = True

    def assign(self, _: int, /, key: Any = None, value: Mapping[str, Any] | None = None) -> list[TimeWindow]:  # noqa: ARG002
        """The window of a record's auction.

        >>> OpenAuctions().assign(5, value={"opened": 3, "expires": 9})
        [TimeWindow(start_ms=3, end_ms=10)]
        """
        return [TimeWindow(value["opened"], value["expires"] + 1)] if value else []
