"""Names of the outputs of operators with state, and of the columns that flowcore adds to them.

A user's column cannot have such a name, since they begin with ``@``.
"""

from collections.abc import Sequence

import pyarrow as pa

__all__ = [
    "DELETED", "EMISSION", "END", "FIRING", "IS_LATE", "LATE", "LATE_LEFT", "LATE_RIGHT", "ORDINAL",
    "RESULTS", "START", "TIMESTAMP", "WINDOW_FIELDS",
]  # fmt: skip

RESULTS = "results"
LATE = "late"
"""The output of records that are too late for all their windows."""
LATE_LEFT, LATE_RIGHT = "late_left", "late_right"
"""The outputs of late records of the two sides of a join."""

START, END, TIMESTAMP, FIRING, IS_LATE = "@start_ms", "@end_ms", "@timestamp_ms", "@firing", "@is_late"
WINDOW_FIELDS: Sequence[tuple[str, pa.DataType]] = (
    (START, pa.int64()),
    (END, pa.int64()),
    (TIMESTAMP, pa.int64()),
    (FIRING, pa.int32()),
    (IS_LATE, pa.bool_()),
)
"""Columns of window results after the key and the values."""

DELETED = "@deleted"
"""True where a row deletes an earlier one, in the results of operators that take rows back."""

EMISSION = "@emission"
"""How often a join has emitted the same unmatched row before, after it had deleted it."""

ORDINAL = "@ordinal"
"""The position of an output among the outputs of one call."""
