"""Co-groups of two frames: one row for each key.

They are one aggregate over both frames, so that records cross one shuffle. Two aggregates and a full outer
join took the same time, and give null instead of 0 for the number of records of a side without records.
"""

import re
from collections.abc import Iterator
from itertools import count

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from flowcore.api.co_groups import Side
from flowcore.api.operators import CoGroup
from flowcore.spark.frame.sql import quote, struct
from flowcore.spark.operators.distinct_keys import has_distinct_keys

__all__ = ["apply_co_group"]

_IS_LEFT = "_is_left"
_SKIPS_NULLS = re.compile(r"(sum|avg|min|max|count)\(\s*(left|right)\.\w+\s*\)", re.IGNORECASE)
"""Aggregates of one column, which ignore the nulls in the other side's rows."""


def apply_co_group(node: CoGroup, left: DataFrame, right: DataFrame) -> DataFrame:
    """One row for each key: the key under its left name, and the aggregates."""
    keys = [f"_k{number}" for number in range(len(node.on))]
    names = (f"_c{number}" for number in count())
    mine = _OneSide(node, "left", left, names)
    theirs = _OneSide(node, "right", right, names)
    both = mine.frame([pair[0] for pair in node.on], keys).unionByName(
        theirs.frame([pair[1] for pair in node.on], keys), allowMissingColumns=True
    )
    found = {**mine.aggregates, **theirs.aggregates}
    values = [f"_a{number}" for number in range(len(found))]
    aggregates = [
        F.expr(found[name]).alias(now) for (name, _), now in zip(node.aggregates, values, strict=True)
    ]
    sides = zip(node.inputs, (left, right), zip(*node.on, strict=True), strict=True)
    if has_distinct_keys(
        node.name, [(each, side, [F.col(quote(key)) for key in on]) for each, side, on in sides]
    ):
        both = both.repartition(*keys)
    grouped: DataFrame = both.groupBy(keys).agg(*aggregates)
    names_now = zip([*keys, *values], node.columns, strict=True)
    return grouped.selectExpr(*(f"{now} AS {quote(name)}" for now, name in names_now))


class _OneSide:
    def __init__(self, node: CoGroup, side: Side, frame: DataFrame, names: Iterator[str]) -> None:
        self.source = frame
        self.side = side
        self.mine = _IS_LEFT if side == "left" else f"NOT {_IS_LEFT}"
        own = [(name, aggregate) for name, aggregate in node.aggregates if aggregate.side == side]
        read = dict.fromkeys(column for _, aggregate in own for column in aggregate.columns)
        self.columns = {column: next(names) for column in read}
        lower = {column.lower(): now for column, now in self.columns.items()}
        self.aggregates = {}
        for name, aggregate in own:
            fields = {column: self.columns[column] for column in aggregate.columns}
            text = aggregate.rename(struct(fields) if fields else _IS_LEFT, lower)
            # Other aggregates, such as first(), would see nulls in the other side's rows.
            skips = _SKIPS_NULLS.fullmatch(aggregate.expression.text) is not None
            self.aggregates[name] = text if skips else f"{text} FILTER (WHERE {self.mine})"

    def frame(self, on: list[str], keys: list[str]) -> DataFrame:
        pairs = [*zip(on, keys, strict=True), *self.columns.items()]
        return self.source.selectExpr(
            *(f"{quote(column)} AS {now}" for column, now in pairs), f"{self.side == 'left'} AS {_IS_LEFT}"
        )
