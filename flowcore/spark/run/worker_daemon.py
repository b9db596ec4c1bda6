"""The daemon from which Spark forks its Python workers, with what these need imported already.

A worker of Spark's own daemon imports pandas, Arrow and flowcore by itself, which takes more than a second of
a processor, and each task of a query's first batch waits for one. Forked from here it has all of that, in
memory that workers share. It is Spark's ``spark.python.daemon.module``.
"""

from __future__ import annotations

import gc

import pandas as pd
import pyarrow.compute as pc
from pyspark import daemon, worker

from flowcore import chains
from flowcore.process import keyed as processes
from flowcore.spark.operators import key_groups
from flowcore.windows import keyed as records
from flowcore.windows.columnar import keyed as columnar

__all__ = ["IMPORTED"]

IMPORTED = (pd, pc, worker, chains, columnar, processes, records, key_groups)
"""What a forked worker finds."""

if __name__ == "__main__":
    gc.freeze()  # what is here stays: no worker shall copy its pages by looking for garbage in it
    daemon.manager()
