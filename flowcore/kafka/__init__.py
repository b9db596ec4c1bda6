"""Kafka: the embedded broker, topics and offsets, logins, latency markers and control elements.

Two clients, one role each:

- confluent-kafka moves data: `elements`, `markers`, `transactions` and `latency_collector` produce and
  consume with it.
  `admin` also probes a broker with it, since its clients can be closed whether or not a broker answered.
- kafka-python does administration and small reads of metadata: topics, offsets, configurations. Only `admin`
  imports it, and uses its public API only; `topics` calls `admin`.

Spark's own Kafka source and sink, which move the records of a flow, are in `flowcore.spark.topics`.
"""
