"""The workloads in Spark's Structured Streaming: `python spark_streaming.py join`."""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

LOW_LATENCY = os.environ["LINGER_MS"] == "0"
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
spark = (
    SparkSession.builder.master("local[*]")
    .config("spark.driver.memory", os.environ["HEAP"])
    .config("spark.driver.extraClassPath", os.environ["CONNECTOR"])
    .config("spark.sql.shuffle.partitions", os.cpu_count() or 1)
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.streaming.stateStore.providerClass", PROVIDER)
    .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")


def read(schema: str) -> DataFrame:
    """The records of the input topic."""
    options = {
        "kafka.bootstrap.servers": os.environ["SERVERS"],
        "subscribe": os.environ["INPUT"],
        "startingOffsets": "earliest",
        "kafka.max.poll.records": "5000",
        "kafka.max.partition.fetch.bytes": str(8 << 20),
    }
    if not LOW_LATENCY:
        options["maxOffsetsPerTrigger"] = os.environ["BATCH_RECORDS"]
    messages = spark.readStream.format("kafka").options(**options).load()
    return messages.select(F.from_json(F.col("value").cast("string"), schema).alias("r")).select("r.*")


def join() -> DataFrame:
    """Add the category of each bid's auction; drop bids without one."""
    auctions = spark.read.csv(os.environ["TABLE"], "key BIGINT, category BIGINT", header=True)
    return read("bid BIGINT, key BIGINT, sent_us BIGINT").join(F.broadcast(auctions), "key")


def running_sum() -> DataFrame:
    """The sum of the values of each key."""
    return read("key BIGINT, value BIGINT").groupBy("key").agg(F.sum("value").alias("total"))


def windows() -> DataFrame:
    """The records of each key in each 10 s."""
    records = read("key BIGINT, at BIGINT").withColumn("time", F.timestamp_millis("at"))
    counts = records.withWatermark("time", "2 seconds").groupBy("key", F.window("time", "10 seconds")).count()
    return counts.select("key", F.col("window.start").alias("window_start"), F.col("count").alias("n"))


WORKLOADS = {"join": join, "latency": join, "sum": running_sum, "windows": windows}
results = WORKLOADS[sys.argv[1]]()
value = F.to_json(F.struct(*results.columns)).alias("value")
writer = (
    results.select(F.col("key").cast("string").alias("key"), value)
    .writeStream.format("kafka")
    .option("kafka.bootstrap.servers", os.environ["SERVERS"])
    .option("topic", os.environ["OUTPUT"])
    .option("kafka.linger.ms", os.environ["LINGER_MS"])
    .option("kafka.batch.size", 512 << 10)
    .option("kafka.buffer.memory", 128 << 20)
    .option("checkpointLocation", os.environ["FOLDER"] + "/checkpoint")
    .outputMode("append" if sys.argv[1] == "windows" else "update")
)
if LOW_LATENCY:
    writer = writer.trigger(realTime=os.environ["CHECKPOINT_S"] + " seconds")  # type: ignore[call-overload]
writer.start().awaitTermination()
