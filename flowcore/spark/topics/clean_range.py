"""Which offsets of a topic hold no bad record, from the batches of a query that has counted them."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CleanRange"]


class CleanRange:
    """The latest offsets of a topic without a bad record; offsets are by partition.

    A partition that was not in the batch before begins with offset 0.
    """

    def __init__(self) -> None:
        self._begin: dict[int, int] = {}
        self._end: dict[int, int] = {}

    def add(self, begin: Mapping[int, int], end: Mapping[int, int], bad: int) -> None:
        """Add a batch with its number of bad records. After a gap, nothing is known of what was before."""
        begins = {partition: begin.get(partition, 0) for partition in end}
        if bad:
            self._begin = dict(end)
        elif all(self._end.get(partition, at) == at for partition, at in begins.items()):
            self._begin = {**begins, **self._begin}
        else:
            self._begin = begins
        self._end = dict(end)

    def judge(self, begin: Mapping[int, int], end: Mapping[int, int]) -> bool | None:
        """Whether no record in a range is bad; False if that is not known, None if it is not known yet."""
        read = {partition: at for partition, at in end.items() if begin.get(partition, 0) < at}
        if any(self._end.get(partition, -1) < at for partition, at in read.items()):
            return None
        return all(self._begin[partition] <= begin.get(partition, 0) for partition in read)
