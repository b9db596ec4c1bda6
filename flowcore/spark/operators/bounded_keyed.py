"""Windows and keyed processes over bounded input that need Python: which rows do they put out?

The rows of a key group go to one task, in order of time, and through the operator that a live query has too;
its input then ends. Nothing is kept in Spark's state store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from flowcore.api.operators import KeyedProcess, Operator, Window
from flowcore.api.window_operator import WINDOW_COLUMNS
from flowcore.chains import DownstreamChain
from flowcore.keyed import output_columns
from flowcore.keyed.bounded import BoundedOperator, BoundedRun
from flowcore.keyed.output_columns import RESULTS
from flowcore.process.keyed import KeyedProcesses
from flowcore.process.outputs import side_output_name
from flowcore.spark.frame.sql import displayable_timestamp, quote
from flowcore.spark.operators.bounded_windows import TIME, timed
from flowcore.spark.operators.by_key import one_of_equals
from flowcore.spark.operators.key_groups import Outlet, Unpacking
from flowcore.spark.operators.python_chain import ChainOutlet, arrow_schema, types_of
from flowcore.spark.operators.windows import operator_of

__all__ = ["ByKeyGroup", "by_key_group"]

_GROUP, _OUTPUT = "_flowcore_key_group", "_flowcore_output"


@dataclass(frozen=True, slots=True)
class ByKeyGroup:
    """What comes out of one operator.

    Attributes:
        whole: Rows of all its outputs.
        results: Its results, or what the functions put out that follow it in the same call.
        sides: Its side outputs by name.
    """

    whole: DataFrame
    results: Mapping[Operator, DataFrame]
    sides: Mapping[str, DataFrame]


def by_key_group(
    node: Window | KeyedProcess,
    frame: DataFrame,
    *,
    key_groups: int,
    clock_ms: int,
    following: tuple[DownstreamChain, Sequence[ChainOutlet]] | None = None,
) -> ByKeyGroup:
    """Run an operator of which `flowcore.planner.rules.forms` says ``"key-group"``.

    Args:
        node: The operator.
        frame: Its input.
        key_groups: In how many groups.
        clock_ms: The clock as its functions see it, which stands still.
        following: The functions that follow it in the same call, and where their records leave.
    """
    behind, leaving = following or (None, ())
    frame = _in_order(node, frame, key_groups)
    rows = to_arrow_schema(frame.schema, timezone="UTC")
    operator, schemas = _operator(node, rows, behind)
    numbers = {output: number for number, output in enumerate(schemas)}
    names = (f"_c{number}" for number in count())
    columns = {output: {name: next(names) for name in schema.names} for output, schema in schemas.items()}
    fields = [(_OUTPUT, pa.int32())]
    fields += [
        (now, schemas[output].field(name).type) for output in schemas for name, now in columns[output].items()
    ]
    schema = pa.schema(fields)
    outlets = {
        output: Outlet(
            schema=schemas[output],
            columns={now: name for name, now in columns[output].items()},
            branch=numbers[output],
        )
        for output in schemas
    }
    unpacking = Unpacking(outlets=outlets, schema=schema, branch=_OUTPUT)
    run = _Run(BoundedRun(operator, clock_ms), unpacking, rows)
    whole: DataFrame = frame.mapInArrow(run.run, from_arrow_schema(schema))
    parts = {
        output: whole.where(f"{_OUTPUT} = {numbers[output]}").selectExpr(*_texts(node, output, columns))
        for output in schemas
    }
    sides = [name for name, _ in node.side_outputs] if isinstance(node, KeyedProcess) else []
    results: dict[Operator, DataFrame] = {} if following else {node: parts[RESULTS]}
    for number, outlet in enumerate(leaving):
        results[outlet.node] = parts[f"chain {number}"]
    return ByKeyGroup(whole, results, {name: parts[side_output_name(name)] for name in sides})


@dataclass(frozen=True, slots=True)
class _Run:
    """What one task does with its rows."""

    group: BoundedRun
    unpacking: Unpacking
    rows: pa.Schema

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of all outputs."""
        same = (batch.cast(self.rows) for batch in batches)
        for output, found in self.group.run(same):
            if output in self.unpacking.outlets:
                yield self.unpacking.rows(self.unpacking.outlets[output], found)


def _in_order(node: Window | KeyedProcess, frame: DataFrame, key_groups: int) -> DataFrame:
    """The columns that are needed, each key group in a partition of its own, in order of time."""
    computed = node.computed if isinstance(node, Window) else ()
    names = dict.fromkeys((*node.by, *node.uses))
    one = {name: one_of_equals(frame.schema, name, name) for name in node.by}
    group = f"pmod(hash({', '.join(one.values())}), {key_groups})" if one else "0"
    frame = timed(node, frame).selectExpr(
        TIME,
        *(f"{one.get(name, quote(name))} AS {quote(name)}" for name in names),
        *(f"{expression.text} AS {quote(name)}" for name, expression in computed),
        f"CAST({group} AS INT) AS {_GROUP}",
    )
    # Rows of equal time by what else they hold, so that every run gives the same.
    ties = [field.name for field in frame.schema.fields if _sortable(field.dataType) and field.name != _GROUP]
    ordered = [F.col(quote(name)).asc_nulls_first() for name in dict.fromkeys((TIME, *ties))]
    return frame.repartitionById(key_groups, _GROUP).sortWithinPartitions(ordered).drop(_GROUP)


def _operator(
    node: Window | KeyedProcess, rows: pa.Schema, behind: DownstreamChain | None
) -> tuple[BoundedOperator, Mapping[str, pa.Schema]]:
    """What is done, and the columns of each output; nothing is late."""
    if isinstance(node, Window):
        windows = operator_of(node, rows, late=())
        return windows, {RESULTS: windows.outputs[RESULTS]}
    schemas = {name: arrow_schema(types_of(schema)) for name, schema in node.side_outputs}
    results = arrow_schema(types_of(node.schema))
    process = KeyedProcesses(
        name=node.name,
        function=node.function,
        keys=node.by,
        values=node.uses,
        timestamp=TIME,
        rows=rows,
        results=results,
        side_outputs=schemas,
        downstream=behind,
    )
    own = {RESULTS: results} if behind is None else behind.outputs
    return process, {**own, **{side_output_name(name): schema for name, schema in schemas.items()}}


def _texts(
    node: Window | KeyedProcess, output: str, columns: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """The columns of an output, as readers call them."""
    found = columns[output]
    if isinstance(node, KeyedProcess):
        yield from (f"{now} AS {quote(name)}" for name, now in found.items())
        return
    yield from (f"{found[name]} AS {quote(name)}" for name in (*node.by, *node.values))
    of_window = (
        displayable_timestamp(found[output_columns.START]),
        displayable_timestamp(found[output_columns.END]),
        found[output_columns.FIRING],
        found[output_columns.IS_LATE],
    )
    yield from (f"{text} AS {name}" for text, name in zip(of_window, WINDOW_COLUMNS, strict=True))


def _sortable(kind: DataType) -> bool:
    match kind:
        case ArrayType(elementType=inner):
            return _sortable(inner)
        case StructType(fields=fields):
            return all(_sortable(field.dataType) for field in fields)
        case _:
            return not isinstance(kind, (MapType, VariantType))
