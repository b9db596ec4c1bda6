"""Windows, keyed processes and deduplication over bounded input, in Python or with Spark's own operators.

In Python, the rows of a key group go to one task, ordered by time, and through the operator of a live query.
Then its input ends. Spark's state store is not used.

In Spark's aggregate, arithmetic on a row's time assigns it to its windows, and rows are grouped by window as
by any other column. All sums stay within 64 bits: the distance from a row back to its window's start is
subtracted only if the result is within the range of 64-bit time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Order
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from flowcore.api.expressions import Expression
from flowcore.api.operators import Deduplicate, KeyedProcess, Operator, Ranked, Window
from flowcore.api.window_operator import WINDOW_COLUMNS
from flowcore.chains import DownstreamChain
from flowcore.keyed.bounded import run_on_bounded
from flowcore.keyed.operator import KeyGroupOperator
from flowcore.keyed.output_columns import RESULTS
from flowcore.process.keyed import KeyedProcesses
from flowcore.process.outputs import side_output_name
from flowcore.spark.frame.sql import displayable_timestamp, literal, quote, struct, visible
from flowcore.spark.operators.deduplication import make_deduplication
from flowcore.spark.operators.key_group_context import PASSED, RECORD_TIMESTAMP
from flowcore.spark.operators.keys import canonical_key, key_group_text
from flowcore.spark.operators.python_chain import ChainOutlet, arrow_schema, spark_types
from flowcore.spark.operators.unpacking import Outlet, Unpacking
from flowcore.spark.operators.windows import make_window_operator, window_texts
from flowcore.windows import SlidingWindows, TumblingWindows

__all__ = [
    "LAST",
    "MAX_MS",
    "MIN_MS",
    "START",
    "BoundedKeyed",
    "KeyedOutputs",
    "add_timestamps",
    "aggregate_windows",
    "apply_bounded",
    "drop_repeats",
    "in_windows",
    "is_sortable",
    "rank_rows",
    "required_time",
    "row_time",
]


_NO_TIMESTAMPS = (
    "operator {!r} asks for the timestamp of a row, which has none: every row would fail; declare it with "
    "process(..., timestamp=), a column or expression"
)
BoundedKeyed = Window | KeyedProcess | Deduplicate
"""The operators that may run by key group over bounded input."""
_NUMBER = "_flowcore_number"
_GROUP, _OUTPUT = "_flowcore_key_group", "_flowcore_output"
_DISTANCE = "_flowcore_behind_ms"
START, LAST = "_flowcore_start_ms", "_flowcore_last_ms"
"""The columns that `in_windows` adds."""
MIN_MS, MAX_MS = "(-9223372036854775807L - 1L)", "9223372036854775807L"
"""SQL texts of the ends of 64-bit time."""


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


def aggregate_windows(node: Window, frame: DataFrame) -> DataFrame:
    """One row for each key and window, for windows that compile to Spark's aggregate."""
    match node.config.assigner:
        case TumblingWindows(size_ms=size_ms, offset_ms=offset_ms):
            frame = in_windows(add_timestamps(node, frame), size_ms, size_ms, offset_ms)
        case SlidingWindows(size_ms=size_ms, slide_ms=slide_ms, offset_ms=offset_ms):
            frame = in_windows(add_timestamps(node, frame), size_ms, slide_ms, offset_ms)
        case _:
            # Grouped by constants if there are neither keys nor windows, so that no rows give no window.
            frame = frame.selectExpr("*", f"{MIN_MS} AS {START}", f"{MAX_MS} AS {LAST}")
    groups = frame.groupBy([F.col(quote(name)) for name in (*node.by, START, LAST)]).agg(
        *(F.expr(text).alias(name) for name, text in node.sql)
    )
    start, end, firing, late = WINDOW_COLUMNS
    return groups.selectExpr(
        *map(quote, (*node.by, *node.values)),
        f"{displayable_timestamp(START)} AS {start}",
        f"{displayable_timestamp(f'try_add({LAST}, 1L)')} AS {end}",
        f"1 AS {firing}",
        f"false AS {late}",
    )


def drop_repeats(node: Deduplicate, frame: DataFrame) -> DataFrame:
    """The first row of each key, in order of time and then of the other columns."""
    ordered = add_timestamps(node, frame)
    keys = [F.col(quote(name)) for name in node.by]
    if node.pass_null_keys:  # each row without key has one of its own
        keys.append(F.when(keys[0].isNull(), F.monotonically_increasing_id()))
    first = F.row_number().over(Order.partitionBy(keys).orderBy(_order_by_time(ordered)))
    numbered = ordered.withColumn(_NUMBER, first).where(f"{_NUMBER} = 1")
    return numbered.select([F.col(quote(name)) for name in node.columns])


def rank_rows(node: Ranked, frame: DataFrame) -> DataFrame:
    """The first rows of each key, in their order; equal rows are in order of the other columns."""
    ordered = add_timestamps(node, frame)
    ties = _order_by_time(ordered.drop(RECORD_TIMESTAMP))
    columns = [(quote(name), descending) for name, descending in node.order] or [(RECORD_TIMESTAMP, True)]
    order = [F.col(name).desc() if descending else F.col(name).asc() for name, descending in columns]
    keys = [F.col(quote(name)) for name in node.by]
    rank = F.row_number().over(Order.partitionBy(keys).orderBy([*order, *ties]))
    numbered = ordered.withColumn(_NUMBER, rank).where(f"{_NUMBER} <= {node.n}")
    own = [F.col(quote(name)) for name in node.inputs[0].columns]
    return numbered.select([*own, *([] if node.rank is None else [F.col(_NUMBER).alias(node.rank)])])


def add_timestamps(node: BoundedKeyed | Ranked, frame: DataFrame) -> DataFrame:
    """Add the column of the record timestamp; a row without a timestamp that needs one fails the stage."""
    time = "CAST(NULL AS BIGINT)"
    if node.timestamp is not None:
        time = row_time(frame, node.timestamp)
    consequence = _needs_time(node)
    if consequence is not None:
        text = "" if node.timestamp is None else node.timestamp.text
        time = required_time(time, node.name, node.by, node.timestamp, consequence, f"timestamp={text!r}")
    return frame.selectExpr("*", f"{time} AS {RECORD_TIMESTAMP}")


def row_time(frame: DataFrame, time: Expression) -> str:
    """SQL text of the milliseconds of a row's time."""
    kind = frame.selectExpr(time.text).schema.fields[0].dataType.typeName()
    whole = kind in ("long", "integer", "short", "byte")
    return f"CAST({time.text} AS BIGINT)" if whole else f"unix_millis(CAST({time.text} AS TIMESTAMP))"


def required_time(  # noqa: PLR0917 - the time, then the words of the error
    time: str, name: str, keys: Sequence[str], declared: Expression | None, consequence: str, parameter: str
) -> str:
    """SQL text of a row's time, which fails the stage if it is null; the error shows keys and the time."""
    read = () if declared is None else declared.columns
    seen = {column: quote(column) for column in dict.fromkeys((*keys, *read))}
    before = f"operator {name!r}: the record "
    after = (
        f" has no timestamp: {consequence}; let {parameter} give every row one, or leave such rows "
        "out with where(...)"
    )
    row = f"to_json({struct(seen)}, map('ignoreNullFields', 'false'))" if seen else "''"
    error = f"concat({literal(before)}, {visible(row)}, {literal(after)})"
    return f"coalesce({time}, CAST(raise_error({error}) AS BIGINT))"


def _needs_time(node: BoundedKeyed | Ranked) -> str | None:
    """Why each row needs a timestamp; None if it needs none."""
    if isinstance(node, Window) and node.config.assigner.bounded:
        return "it belongs to no window of event time"
    if isinstance(node, Deduplicate) and node.within_ms is not None:
        return "it is not known what it repeats"
    if isinstance(node, Ranked) and node.rank is None:
        return "it is not known which row is newer"
    return None


def _order_by_time(frame: DataFrame) -> list[Column]:
    """Rows with equal timestamps are ordered by their other columns, so that all runs are alike."""
    ties = [field.name for field in frame.schema.fields if is_sortable(field.dataType)]
    time = [RECORD_TIMESTAMP] if RECORD_TIMESTAMP in frame.columns else []
    return [F.col(quote(name)).asc_nulls_first() for name in dict.fromkeys((*time, *ties))]


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
    ordered = _order_by_time(frame.drop(_GROUP))
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


def is_sortable(kind: DataType) -> bool:
    """Whether Spark can order values of a type."""
    match kind:
        case ArrayType(elementType=inner):
            return is_sortable(inner)
        case StructType(fields=fields):
            return all(is_sortable(field.dataType) for field in fields)
        case _:
            return not isinstance(kind, (MapType, VariantType))


def in_windows(frame: DataFrame, size_ms: int, slide_ms: int, offset_ms: int) -> DataFrame:
    """The rows, once for each of their windows, with the window's first and last millisecond."""
    time = RECORD_TIMESTAMP
    nearest = f"pmod(pmod({time}, {slide_ms}L) - {offset_ms % slide_ms}L, {slide_ms}L)"
    if slide_ms < size_ms:
        nearest = f"explode(sequence({nearest}, {size_ms - 1}L, {slide_ms}L))"
    ahead = f"({size_ms - 1}L - {_DISTANCE})"
    return frame.selectExpr("*", f"{nearest} AS {_DISTANCE}").selectExpr(
        "*",
        f"if({time} < {MIN_MS} + {_DISTANCE}, {MIN_MS}, {time} - {_DISTANCE}) AS {START}",
        f"if({time} > {MAX_MS} - {ahead}, {MAX_MS}, {time} + {ahead}) AS {LAST}",
    )
