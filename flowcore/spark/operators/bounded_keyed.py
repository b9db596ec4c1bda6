"""Windows, keyed processes and deduplication over bounded input, by key group.

The rows of a key group go to one task, ordered by time, and through the operator of a live query. Then its
input ends. Spark's state store is not used.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from flowcore.api.operators import Deduplicate, KeyedProcess, Operator, Window
from flowcore.chains import DownstreamChain
from flowcore.keyed.bounded import run_on_bounded
from flowcore.keyed.operator import KeyGroupOperator
from flowcore.keyed.output_columns import RESULTS
from flowcore.process.keyed import KeyedProcesses
from flowcore.process.outputs import side_output_name
from flowcore.spark.frame.sql import quote
from flowcore.spark.operators.bounded_rows import add_timestamps, order_by_time
from flowcore.spark.operators.chain_specs import ChainOutlet, arrow_schema, spark_types
from flowcore.spark.operators.deduplication import make_deduplication
from flowcore.spark.operators.key_group_context import PASSED, RECORD_TIMESTAMP
from flowcore.spark.operators.keys import canonical_key, key_group_text
from flowcore.spark.operators.unpacking import Outlet, Unpacking
from flowcore.spark.operators.windows import make_window_operator, window_texts

__all__ = ["BoundedKeyed", "KeyedOutputs", "apply_bounded"]


_NO_TIMESTAMPS = (
    "operator {!r} asks for the timestamp of a row, which has none: every row would fail; declare it with "
    "process(..., timestamp=), a column or expression"
)
BoundedKeyed = Window | KeyedProcess | Deduplicate
"""The operators that may run by key group over bounded input."""
_GROUP, _OUTPUT = "_flowcore_key_group", "_flowcore_output"


@dataclass(frozen=True, slots=True)
class KeyedOutputs:
    """The outputs of one operator.

    Attributes:
        results: Its results, or the outputs of its downstream chain, by operator.
    """

    whole: DataFrame
    results: Mapping[Operator, DataFrame]
    sides: Mapping[str, DataFrame]


def apply_bounded(
    node: BoundedKeyed,
    frame: DataFrame,
    *,
    key_groups: int,
    processing_time_ms: int,
    downstream: tuple[DownstreamChain, Sequence[ChainOutlet]] | None = None,
) -> KeyedOutputs:
    """Run an operator that compiles to the form ``"key-group"``.

    Its functions see the constant ``processing_time_ms``. ``downstream`` is a chain with its outlets.
    """
    chain, leaving = downstream or (None, ())
    frame = _sort(node, frame, key_groups)
    rows = to_arrow_schema(frame.schema, timezone="UTC")
    operator, schemas = _make_operator(node, rows, chain)
    numbers = {output: number for number, output in enumerate(schemas)}
    names = (f"_c{number}" for number in count())
    columns = {output: {name: next(names) for name in schema.names} for output, schema in schemas.items()}
    fields = [(_OUTPUT, pa.int32())]
    fields += [
        (now, schemas[output].field(name).type) for output in schemas for name, now in columns[output].items()
    ]
    schema = pa.schema(fields)
    outlets = {
        (0, output): Outlet(
            schema=schemas[output],
            columns={now: name for name, now in columns[output].items()},
            constants={_OUTPUT: numbers[output]},
        )
        for output in schemas
    }
    unpacking = Unpacking(outlets=outlets, schema=schema)
    run = _Run(operator, processing_time_ms, unpacking, rows)
    whole: DataFrame = frame.mapInArrow(run.run, from_arrow_schema(schema))
    parts = {
        output: whole.where(f"{_OUTPUT} = {numbers[output]}").selectExpr(*_texts(node, output, columns))
        for output in schemas
    }
    sides = [name for name, _ in node.side_outputs] if isinstance(node, KeyedProcess) else []
    results: dict[Operator, DataFrame] = {} if downstream else {node: parts[RESULTS]}
    for number, outlet in enumerate(leaving):
        results[outlet.node] = parts[f"chain {number}"]
    return KeyedOutputs(whole, results, {name: parts[side_output_name(name)] for name in sides})


@dataclass(frozen=True, slots=True)
class _Run:
    """Runs the operator on the rows of one task."""

    operator: KeyGroupOperator
    processing_time_ms: int
    unpacking: Unpacking
    rows: pa.Schema

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of all outputs."""
        same = (batch.cast(self.rows) for batch in batches)
        for output, found in run_on_bounded(self.operator, same, processing_time_ms=self.processing_time_ms):
            if outlet := self.unpacking.outlets.get((0, output)):
                yield self.unpacking.rows(outlet, found)


def _sort(node: BoundedKeyed, frame: DataFrame, key_groups: int) -> DataFrame:
    """Select the needed columns, with each key group in its own partition, ordered by time."""
    computed = node.computed if isinstance(node, Window) else ()
    passed = node.columns if isinstance(node, Deduplicate) else ()
    canonical = {name: canonical_key(frame.schema, name, name) for name in node.by}
    names = dict.fromkeys((*node.by, *node.uses))
    texts = {name: canonical.get(name, quote(name)) for name in names}
    texts |= {name: expression.text for name, expression in computed}
    texts |= {f"{PASSED}{name}": quote(name) for name in passed}
    frame = add_timestamps(node, frame).selectExpr(
        RECORD_TIMESTAMP,
        *(f"{text} AS {quote(name)}" for name, text in texts.items()),
        f"{key_group_text([*canonical.values()], key_groups)} AS {_GROUP}",
    )
    ordered = order_by_time(frame.drop(_GROUP))
    return frame.repartitionById(key_groups, _GROUP).sortWithinPartitions(ordered).drop(_GROUP)


def _make_operator(
    node: BoundedKeyed, rows: pa.Schema, chain: DownstreamChain | None
) -> tuple[KeyGroupOperator, Mapping[str, pa.Schema]]:
    """The operator, and the columns of each output; no record is late."""
    if isinstance(node, Window):
        windows = make_window_operator(node, rows, late=())
        return windows, {RESULTS: windows.outputs[RESULTS]}
    if isinstance(node, Deduplicate):
        first = make_deduplication(node, rows, tuple(f"{PASSED}{name}" for name in node.columns))
        return first, first.outputs
    schemas = {name: arrow_schema(spark_types(schema)) for name, schema in node.side_outputs}
    results = arrow_schema(spark_types(node.schema))
    process = KeyedProcesses(
        name=node.name,
        function=node.function,
        keys=node.by,
        values=node.uses,
        timestamp=RECORD_TIMESTAMP,
        rows=rows,
        results=results,
        side_outputs=schemas,
        downstream=chain,
        no_timestamps=None if node.timestamp is not None else _NO_TIMESTAMPS.format(node.name),
    )
    own = {RESULTS: results} if chain is None else chain.outputs
    return process, {**own, **{side_output_name(name): schema for name, schema in schemas.items()}}


def _texts(node: BoundedKeyed, output: str, columns: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """SQL texts of the columns of an output, with their readers' names."""
    found = columns[output]
    if isinstance(node, Deduplicate):
        yield from (f"{found[f'{PASSED}{name}']} AS {quote(name)}" for name in node.columns)
        return
    if isinstance(node, KeyedProcess):
        yield from (f"{now} AS {quote(name)}" for name, now in found.items())
        return
    yield from (f"{found[name]} AS {quote(name)}" for name in (*node.by, *node.values))
    yield from (f"{text} AS {name}" for name, text in window_texts(found).items())
