"""Flush: how seldom may a changing result leave, and in which order?

Behind an operator whose output may be replaced by its latest value stands a buffer of the latest record
of each key, `BufferOutput`. Configuration (`config`), logic (`buffering`) and state (`buffer`) are three
types; `snapshots` writes the state down. `bundle` is the other way to do less: an operator that takes its
input by the bundle.

Pure: the clock is passed in, what leaves is returned. Times are integer milliseconds since the epoch, UTC.
"""

from __future__ import annotations

from flowcore.flush.buffer import Buffer
from flowcore.flush.config import BufferOutput

__all__ = ["Buffer", "BufferOutput"]
