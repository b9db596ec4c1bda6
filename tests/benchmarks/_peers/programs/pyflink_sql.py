"""The workloads in PyFlink SQL: `python pyflink_sql.py join`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

LINGER_MS, LOW_LATENCY = os.environ["LINGER_MS"], os.environ["LINGER_MS"] == "0"
OPTIONS = {
    "pipeline.jars": Path(os.environ["CONNECTOR"]).as_uri(),
    "parallelism.default": str(os.cpu_count()),
    "table.local-time-zone": "UTC",
    "pipeline.object-reuse": "true",
    "execution.checkpointing.interval": os.environ["CHECKPOINT_S"] + " s",
    "execution.checkpointing.dir": Path(os.environ["FOLDER"], "checkpoints").as_uri(),
    "execution.buffer-timeout.interval": "0 ms" if LOW_LATENCY else "100 ms",
    "rest.bind-port": "20000-30000",
    "table.exec.mini-batch.enabled": "false" if LOW_LATENCY else "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
}
CLIENT = f"'properties.bootstrap.servers' = '{os.environ['SERVERS']}'"
READ = f"""
    'connector' = 'kafka', 'topic' = '{os.environ["INPUT"]}', 'format' = 'json', {CLIENT},
    'scan.startup.mode' = 'earliest-offset', 'properties.group.id' = '{os.environ["OUTPUT"]}',
    'properties.max.poll.records' = '5000', 'properties.max.partition.fetch.bytes' = '8388608'
"""
WRITE = f"""
    'topic' = '{os.environ["OUTPUT"]}', {CLIENT}, 'properties.linger.ms' = '{LINGER_MS}',
    'properties.batch.size' = '524288', 'properties.buffer.memory' = '134217728',
    'sink.delivery-guarantee' = 'at-least-once'
"""
APPEND = (
    f"'connector' = 'kafka', 'key.fields' = 'key', 'key.format' = 'raw', 'value.format' = 'json', {WRITE}"
)
UPSERT = f"'connector' = 'upsert-kafka', 'key.format' = 'raw', 'value.format' = 'json', {WRITE}"

# The header of the table is a line that cannot be parsed.
# Without a TTL all bids are kept. With one Flink's heap state looks at all bids of a key for each new one: of
# 500,000 bids it joined 20,000/s in place of 65,000.
JOIN = f"""
    CREATE TABLE bids (bid BIGINT, key BIGINT, sent_us BIGINT) WITH ({READ});
    CREATE TABLE auctions (key BIGINT, category BIGINT)
    WITH ('connector' = 'filesystem', 'path' = '{os.environ["TABLE"]}', 'format' = 'csv',
        'csv.ignore-parse-errors' = 'true');
    CREATE TABLE enriched (bid BIGINT, key BIGINT, category BIGINT, sent_us BIGINT) WITH ({APPEND});
    INSERT INTO enriched
    SELECT b.bid, b.key, a.category, b.sent_us
    FROM bids b JOIN auctions a ON b.key = a.key
"""
SUM = f"""
    CREATE TABLE records (key BIGINT, `value` BIGINT) WITH ({READ});
    CREATE TABLE totals (key BIGINT, total BIGINT, PRIMARY KEY (key) NOT ENFORCED) WITH ({UPSERT});
    INSERT INTO totals SELECT key, SUM(`value`) FROM records GROUP BY key
"""
WINDOWS = f"""
    CREATE TABLE records (
        key BIGINT, `at` BIGINT, ts AS TO_TIMESTAMP_LTZ(`at`, 3), WATERMARK FOR ts AS ts - INTERVAL '2' SECOND
    ) WITH ({READ});
    CREATE TABLE counts (key BIGINT, window_start TIMESTAMP(3), n BIGINT) WITH ({APPEND});
    INSERT INTO counts
    SELECT key, window_start, COUNT(*)
    FROM TUMBLE(TABLE records, DESCRIPTOR(ts), INTERVAL '10' SECOND) GROUP BY key, window_start, window_end
"""
WORKLOADS = {"join": JOIN, "latency": JOIN, "sum": SUM, "windows": WINDOWS}

configuration = Configuration()
for name, value in OPTIONS.items():
    configuration.set_string(name, value)
settings = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
tables = TableEnvironment.create(settings)
*declarations, insert = WORKLOADS[sys.argv[1]].split(";")
for declaration in declarations:
    tables.execute_sql(declaration)
tables.execute_sql(insert).wait()
