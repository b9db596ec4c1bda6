"""Stream processing with Flink's semantics on Spark, declared in Python.

Importing this package starts no JVM and imports no Spark.
"""
