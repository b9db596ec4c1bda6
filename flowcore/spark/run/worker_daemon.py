"""The daemon from which Spark forks its Python workers, with their modules already imported.

A worker of Spark's own daemon imports pandas, Arrow and flowcore itself, which takes more than a second of
processor time and delays each task of a query's first batch. A worker forked from this daemon has them, in
memory that all workers share. It is Spark's ``spark.python.daemon.module``.

A daemon must start soon, also where `fork_server` does not serve it: what runs in workers imports neither the
API, nor SQL parsers, nor Kafka clients.
"""

import gc

import pandas as pd
import pyarrow.compute as pc
from pyarrow import pandas_compat
from pyspark import daemon, worker
from pyspark.sql.streaming.proto import StateMessage_pb2

from flowcore import chains
from flowcore.deduplication import keyed as deduplication
from flowcore.flush import operator as flush
from flowcore.joins import asof, interval, latest
from flowcore.keyed import exchange, packing
from flowcore.process import keyed as processes
from flowcore.retraction import aggregates, changelog
from flowcore.sorting import keyed as sorting
from flowcore.spark.operators import processor, unpacking
from flowcore.windows import keyed as records
from flowcore.windows.columnar import keyed as columnar

__all__ = ["IMPORTED"]

IMPORTED = (
    pd, pc, pandas_compat, worker, StateMessage_pb2, chains, deduplication, flush, asof, interval, latest,
    exchange, packing, processes, aggregates, changelog, sorting, processor, unpacking, records, columnar,
)  # fmt: skip
"""The modules that a forked worker has."""

if __name__ == "__main__":
    gc.freeze()  # so that garbage collection in a worker does not copy these pages
    daemon.manager()
