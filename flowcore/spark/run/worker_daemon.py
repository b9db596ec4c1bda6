"""The daemon from which Spark forks its Python workers, with their modules already imported.

A worker of Spark's own daemon imports pandas, Arrow and flowcore itself, which takes more than a second of
processor time and delays each task of a query's first batch. A worker forked from this daemon has them, in
memory that all workers share. It is Spark's ``spark.python.daemon.module``.

Each exchange of a query has a daemon of its own, so it must start soon: what runs in workers imports neither
the API, nor SQL parsers, nor Kafka clients.
"""

import gc

import pandas as pd
import pyarrow.compute as pc
from pyspark import daemon, worker

from flowcore import chains
from flowcore.keyed import exchange, packing
from flowcore.process import keyed as processes
from flowcore.spark.operators import processor, unpacking
from flowcore.windows import keyed as records
from flowcore.windows.columnar import keyed as columnar

__all__ = ["IMPORTED"]

IMPORTED = (pd, pc, worker, chains, columnar, exchange, packing, processes, processor, records, unpacking)
"""The modules that a forked worker has."""

if __name__ == "__main__":
    gc.freeze()  # so that garbage collection in a worker does not copy these pages
    daemon.manager()
