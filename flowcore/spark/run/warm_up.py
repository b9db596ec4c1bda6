"""Load the classes of a typical job, for the JVM's class archive.

`python -m flowcore.spark.run.warm_up FILE` runs the work of a small flow once: Parquet, joins, aggregates,
and Kafka in each mode of a live query. When its JVM ends, it writes the loaded classes to the class archive
FILE.
"""

import contextlib
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from flowcore.errors import BrokerError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.settings import Settings
from flowcore.spark.run.session import live_session, start_session

__all__ = ["record_classes"]

_SLOTS = 4
"""A real-time query holds a slot for its Kafka partition and for each of its two shuffle partitions."""

_SCHEMA = "id long, category string, price double, at timestamp"
_AVRO = (
    '{"type":"record","name":"r","fields":[{"name":"id","type":["long","null"]},'
    '{"name":"price","type":["double","null"]}]}'
)


def record_classes(archive: Path) -> None:
    """Run the typical work; the archive is written when this process ends."""
    with tempfile.TemporaryDirectory() as folder:
        # With a flow's own configuration, since an archive requires the class path of its recording.
        settings = Settings(state_dir=Path(folder))
        started = start_session(settings, "flowcore-warm-up", slots=_SLOTS, record_to=archive)
        spark = live_session(started, settings)
        catalog = _bounded(spark, Path(folder))
        with contextlib.suppress(BrokerError), EmbeddedBroker() as broker:
            _live(spark, catalog, broker.bootstrap_servers, Path(folder))
        spark.stop()


def _bounded(spark: SparkSession, folder: Path) -> DataFrame:
    """Write, read, join and aggregate bounded tables."""
    rows = spark.range(100).select(
        "id",
        F.format_string("c%d", F.col("id") % 5).alias("category"),
        (F.col("id") * 1.5).alias("price"),
        F.timestamp_seconds("id").alias("at"),
    )
    for kind in ("parquet", "json", "csv"):
        rows.write.format(kind).save(str(folder / kind))
    history = spark.read.schema(_SCHEMA).parquet(str(folder / "parquet"))
    history.selectExpr("to_avro(struct(id, price)) AS value").selectExpr(
        f"from_avro(value, '{_AVRO}', map('mode', 'PERMISSIVE'))"
    ).toArrow()
    per_category = history.groupBy("category").agg(
        F.expr("count(distinct id) as sold"), F.expr("median(price) as median"), F.max("at").alias("last")
    )
    catalog = history.select("id", "category").join(per_category, "category", "left")
    catalog.write.parquet(str(folder / "catalog"))
    catalog.hint("merge").join(history, "id").where("price > 3").orderBy("id").limit(5).toArrow()
    return spark.read.parquet(str(folder / "catalog"))


def _live(spark: SparkSession, catalog: DataFrame, servers: str, folder: Path) -> None:
    """Read, join, aggregate and write Kafka, as a slice and in real time."""
    kafka = {"kafka.bootstrap.servers": servers}
    bids = spark.range(200).select(F.to_json(F.struct("id", (F.col("id") * 2).alias("price"))).alias("value"))
    bids.write.format("kafka").options(**kafka, topic="bids").save()
    live = (
        spark.readStream.format("kafka")
        .options(**kafka, subscribe="bids", startingOffsets="earliest")
        .load()
        .select(F.from_json(F.col("value").cast("string"), _SCHEMA).alias("row"), "topic", "timestamp")
        .select("row.*", "topic", "timestamp")
    )
    joined = live.drop("category").join(F.broadcast(catalog), "id", "left")
    outputs = {
        "stateless": joined.select(F.to_json(F.struct("*")).alias("value"), F.lit("out").alias("topic")),
        "keyed": joined.groupBy("category")
        .agg(F.max("price").alias("highest"), F.count("*").alias("n"))
        .select(
            F.col("category").alias("key"),
            F.to_json(F.struct("*")).alias("value"),
            F.lit("out").alias("topic"),
        ),
    }
    for name, output in outputs.items():
        writer = (
            output.writeStream.format("kafka")
            .options(**kafka, checkpointLocation=str(folder / name))
            .outputMode("update")
        )
        writer.trigger(availableNow=True).start().awaitTermination()
    bids.write.format("kafka").options(**kafka, topic="bids").save()
    in_real_time = writer.trigger(realTime="5 seconds").start()  # type: ignore[call-overload]
    in_real_time.awaitTermination(7)  # one batch with its commit
    in_real_time.stop()


if __name__ == "__main__":
    record_classes(Path(sys.argv[1]))
