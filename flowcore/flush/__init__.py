"""Flush buffers: the latest result of each key, emitted once an interval (FLIP-365).

A buffer follows an operator whose output may be replaced by its latest value. `config` declares when it is
flushed, `operator` is the buffer of a key group, and `buffered` puts it and another operator into one.

The processing time is passed in. Times are integer milliseconds since the epoch, UTC.
"""

from flowcore.flush.config import BufferOutput

__all__ = ["BufferOutput"]
