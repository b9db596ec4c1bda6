"""A change of the number of partitions that was interrupted: undone, or completed.

Spark plans a batch with the new number, rewrites the state, and commits the batch. Its records are nothing,
so the ledger of the query leaves it out.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from flowcore.spark.checkpoint.offset_log import has_unfinished_batch, planned_batches, state_partitions
from flowcore.spark.checkpoint.plan_file import skip_ledger_batch

__all__ = ["copy_of", "settle_repartition"]

_log = logging.getLogger(__name__)


def copy_of(checkpoint: Path) -> Path:
    """Where a change of key groups keeps a copy of a checkpoint, whose files are links."""
    return checkpoint.parent.with_name(".rescale") / checkpoint.name


def settle_repartition(checkpoint: Path) -> None:
    """Undo or complete the last batch, if that changes the number of partitions; otherwise do nothing.

    A copy that a change of key groups left when it was killed is removed: its links would keep all state
    files. To be called while no query runs on the checkpoint.
    """
    shutil.rmtree(copy_of(checkpoint), ignore_errors=True)
    last, *before = sorted(planned_batches(checkpoint), reverse=True) or [-1]
    if not before or state_partitions(checkpoint, last) == state_partitions(checkpoint, before[0]):
        return
    if not has_unfinished_batch(checkpoint):
        skip_ledger_batch(checkpoint)
        return
    _log.warning("the change of the partitions of %s was interrupted, and is undone", checkpoint)
    # The planned batch last: without it nobody would look for the others.
    for file in (*_state_of(checkpoint, last), checkpoint / "offsets" / f".{last}.crc"):
        file.unlink(missing_ok=True)
    (checkpoint / "offsets" / str(last)).unlink()


def _state_of(checkpoint: Path, batch: int) -> Iterator[Path]:
    """The files that belong to the state after a batch, which has the next number, and its metadata."""
    version = re.compile(rf"\.?{batch + 1}[._]")
    for file in (checkpoint / "state").rglob("*"):
        is_metadata = file.parent.name == "v2" and file.name in (str(batch), f".{batch}.crc")
        if file.is_file() and (is_metadata or ("_metadata" not in file.parts and version.match(file.name))):
            yield file
