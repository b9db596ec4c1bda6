"""Distribute the state in a checkpoint over another number of partitions while no query runs on it.

Spark rewrites the state as one more batch, which reads nothing. The next start continues after that batch. If
the change is interrupted, the next start or call undoes or completes it.
"""

from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from flowcore.errors import StateError
from flowcore.failpoints import failpoint
from flowcore.spark.checkpoint.lease import Leases
from flowcore.spark.checkpoint.offset_log import state_partitions
from flowcore.spark.checkpoint.repartitioning import settle_repartition
from flowcore.spark.run.inspection import StateDigest, digest_state

__all__ = ["rescale_checkpoint"]


def rescale_checkpoint(spark: SparkSession, checkpoint: Path, partitions: int) -> StateDigest | None:
    """Distribute the state of a checkpoint over another number of partitions.

    Args:
        spark: A session with the configuration of live queries.
        checkpoint: The folder.
        partitions: The number of partitions, above 0.

    Returns:
        The state, which is the same before and after; None if there are that many partitions already, or if
        the query keeps no state.

    Raises:
        RunError: A query runs on the checkpoint, or has begun meanwhile.
        StateError: The state cannot be read or rewritten, or differs afterwards.
    """
    with Leases() as leases:
        leases.take(checkpoint)
        settle_repartition(checkpoint)
        before = digest_state(spark, checkpoint)
        if not before.operators or state_partitions(checkpoint) == partitions:
            return None
        leases.require()
        try:
            # Experimental in Spark 4.3, and not yet in its documented API.
            spark._streamingCheckpointManager.repartition(str(checkpoint), partitions)  # noqa: SLF001
        except (PySparkException, Py4JJavaError) as error:
            reason = str(getattr(error, "java_exception", error)).splitlines()[0]
            msg = (
                f"the state in {checkpoint} cannot be distributed over {partitions} partitions: {reason}; it "
                "is as before; if the last batch was not committed, run the flow in mode slice, and then "
                "this again"
            )
            raise StateError(msg) from error
        failpoint("state-repartitioned")
        settle_repartition(checkpoint)
        after = digest_state(spark, checkpoint)
        if before != after:
            msg = (
                f"the state in {checkpoint} was distributed over {partitions} partitions, and differs: it "
                f"was {before}, and is {after}; the flow would continue with wrong state; bring a copy of "
                "the folder back, or start a new checkpoint"
            )
            raise StateError(msg)
        return after
