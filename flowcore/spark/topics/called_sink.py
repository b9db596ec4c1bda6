"""A sink in Python as Spark calls it, with each batch: Spark gets a short error, and a run the whole one.

When a query is stopped, Spark searches the text of a sink's error for the name of an interruption. The search
recurses for each character, and the text of an error of the JVM has thousands: the query's thread would end
with a StackOverflowError, and the query without any error.
"""

from collections.abc import Callable

from pyspark.sql import DataFrame

from flowcore.errors import RunError
from flowcore.spark.errors import collect_texts

__all__ = ["CalledSink"]

_SHOWN = 300
_INTERRUPTIONS = (
    "java.lang.InterruptedException", "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)  # fmt: skip
_FOUND_BY_SPARK = "py4j.protocol.Py4JJavaError: An error occurred while calling"


class CalledSink:
    """Writes the batches of a query; to be passed to ``foreachBatch``.

    Args:
        write: Writes a batch, with this number.

    Attributes:
        error: Why the last batch could not be written; Spark's own error only quotes it.
    """

    def __init__(self, write: Callable[[DataFrame, int], object]) -> None:
        self._write = write
        self.error: Exception | None = None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Write one batch.

        Raises:
            RunError: It could not be written.
        """
        try:
            self._write(frame, batch)
        except Exception as error:  # noqa: BLE001 - the run shows it
            self.error = error
            raise RunError(_shorten(error)) from None


def _shorten(error: Exception) -> str:
    found = " ".join(collect_texts(error))
    interruption = next((name for name in _INTERRUPTIONS if name in found), None)
    return str(error)[:_SHOWN] if interruption is None else f"{_FOUND_BY_SPARK} the sink: {interruption}"
