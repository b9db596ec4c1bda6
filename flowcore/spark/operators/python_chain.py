"""Run a chain of Python operators as one ``mapInArrow`` over its input columns and those that pass it."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, IntegerType

from flowcore.api.operators import ChainOperator, Operator
from flowcore.chains import (
    FailedRows,
    OutletRows,
    PassingChain,
)
from flowcore.planner.model import Chain
from flowcore.settings import CheckMode
from flowcore.spark.busy_times import TaskTimes
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.rows import (
    BACKLOG,
    BAD_REASON,
    BRANCH,
    CHANNEL,
    ELEMENT,
    FAILED_OPERATOR,
    KAFKA_KEY,
    KAFKA_MS,
    KEY_GROUP,
    NEWEST,
    POSITION,
    RECORD_ID,
    RECORD_ORDINAL,
    SOURCE,
    TIMESTAMP_MS,
    VALUE,
    RowKind,
)
from flowcore.spark.frame.sql import literal, quote
from flowcore.spark.operators.chain_specs import ChainOutlet, SpecWriter, arrow_schema, spark_struct
from flowcore.spark.operators.worker_objects import WorkerObject
from flowcore.spark.topics.arriving_attributes import reads_attributes
from flowcore.spark.topics.formats.sql_format import outside_calendar

__all__ = [
    "Keeping",
    "apply_bounded_chain",
    "apply_chain",
]

_COORDINATES = ("topic", "partition", "offset")
_IDENTITY = (*_COORDINATES, RECORD_ORDINAL, RECORD_ID)
_OF_A_RECORD = (
    *_COORDINATES, RECORD_ORDINAL, TIMESTAMP_MS, RECORD_ID, BACKLOG, SOURCE, NEWEST, KEY_GROUP, POSITION,
)  # fmt: skip
_OF_MESSAGES = (VALUE, BAD_REASON, KAFKA_MS, KAFKA_KEY, FAILED_OPERATOR, ELEMENT, CHANNEL)
_ROW = "_row"
_FAILED_ROWS = FailedRows(
    branch=RowKind.BAD, time=KAFKA_MS, reason=BAD_REASON, operator=FAILED_OPERATOR, value=VALUE
)


@dataclass(frozen=True, slots=True)
class Keeping:
    """How the workers of a live query keep the functions of a chain open.

    Attributes:
        place: The folder of the query's checkpoint: a worker distinguishes chains by it and their names.
        times: Takes how long a chain was busy.
    """

    place: str
    times: TaskTimes


def apply_bounded_chain(
    chain: Chain, frame: DataFrame, used: Mapping[Operator, Collection[str]], ends: Collection[Operator],
    check: CheckMode,
) -> tuple[DataFrame, Mapping[Operator, DataFrame]]:  # fmt: skip
    """Run a chain on bounded input: a frame with all outputs, and for each operator the part it emits.

    The arguments are those of `apply_chain`.
    """
    branched = BranchedFrame(frame, (f"_c{number}" for number in count(1)), has_coordinates=False)
    branch = Branch(1, {column: column for column in frame.columns})
    branches = apply_chain(chain, branched, branch, used=used, ends=ends, numbers=count(2), check=check)
    return branched.frame, {node: branched.rows_of(each) for node, each in branches.items()}


def apply_chain(
    chain: Chain, branched: BranchedFrame, branch: Branch, *,
    used: Mapping[Operator, Collection[str]], numbers: Iterator[int], ends: Collection[Operator] = (),
    steps: Mapping[Operator, str] | None = None, kept: Collection[str] = (), check: CheckMode = "off",
    last: bool = True, keeping: Keeping | None = None,
    lags: bool = True, timed: bool = True, made: str | None = None,
) -> Mapping[ChainOperator, Branch]:  # fmt: skip
    """Run a chain on the rows of a branch; returns the branch of each operator that emits from it.

    Args:
        used: The output columns of each operator that are used, in lower case.
        ends: Operators whose whole output the chain emits.
        steps: Labels of operators that repeat records, for their ids.
        kept: The columns of other branches, which pass the chain.
        last: No other chain follows whose failing records would need their message's bytes.
        keeping: How a worker keeps the functions open from task to task; None closes them at the end of each
            task.
        lags: Rows without the column `BACKLOG` are backlog.
        timed: Records of an output, or of another branch, keep their timestamps.
        made: The topic to whose dead letters records go that an operator with state made; None if a failure
            for one of them stops the query.
    """
    if made is not None:
        branched.add_bad(branch)
    if not timed:
        branched.frame = branched.frame.drop(TIMESTAMP_MS)
    backlog = _backlog_column(chain, branched, lags=lags)
    inputs = _input_columns(chain.head, branch, used)
    existing = set(branched.frame.columns)
    carried, passing = _carried_and_passing(branched, kept)
    has_places = branch.has_coordinates or made is not None
    may_fail = branched.has_bad and FAILED_OPERATOR in existing and has_places
    if may_fail:
        carried += [] if last else [VALUE, KAFKA_MS]
        _set_aside_unreadable(chain.head, branched, branch, inputs, made)
    frame = _select(branched.frame, [*passing, *inputs.values()])
    types = {field.name: field.dataType for field in frame.schema.fields}
    writer = SpecWriter(chain, used, ends)
    spec = writer.spec({name: types[now] for name, now in inputs.items()})
    outlets = _branch_outlets(writer.outlets, branched, branch, numbers)
    columns = outlets.columns({name: types[name] for name in passing})
    run = PassingChain(
        spec=spec,
        check=check,
        inputs=inputs,
        branch=BRANCH if outlets.share_rows else None,
        number=branch.number if branched.shared else None,
        carried=carried,
        identity=[name for name in carried if name in _IDENTITY],
        ordinal=RECORD_ORDINAL if RECORD_ORDINAL in existing else None,
        coordinates=_COORDINATES if existing.issuperset(_COORDINATES) else (),
        outlets=outlets.rows(steps or {}),
        failed=replace(_FAILED_ROWS, made=made) if may_fail else None,
        schema=arrow_schema(columns),
        backlog=backlog,
    )
    task: _ChainOfTask | _KeptChain = _ChainOfTask(run)
    if keeping is not None:
        task = _KeptChain(chain.name, WorkerObject(f"{keeping.place}/{chain.name}", run), keeping.times)
    branched.frame = frame.mapInArrow(task.run, spark_struct(columns))
    branched.shared = outlets.share_rows
    return outlets.branches


def _set_aside_unreadable(
    head: Operator, branched: BranchedFrame, branch: Branch, inputs: Mapping[str, str], made: str | None
) -> None:
    """Let the records of a branch become dead letters that have a date or time which Python cannot hold."""
    types = {field.name: field.dataType for field in branched.frame.schema.fields}
    cases = {
        name: f"coalesce({outside}, false)"
        for name, now in inputs.items()
        if (outside := outside_calendar(quote(now), types[now]))
    }
    if not cases:
        return
    is_bad = f"{branched.is_in(branch)} AND ({' OR '.join(cases.values())})"
    reasons = " ".join(
        f"WHEN {outside} THEN {literal(f'column {name!r} is outside the years 1 to 9999')}"
        for name, outside in cases.items()
    )
    texts = {
        BRANCH: str(int(RowKind.BAD)), BAD_REASON: f"CASE {reasons} END", FAILED_OPERATOR: literal(head.name)
    }  # fmt: skip
    columns = {name: f"CASE WHEN {is_bad} THEN {text} ELSE {name} END" for name, text in texts.items()}
    if made is not None:
        fields = ", ".join(f"{literal(name)}, {quote(now)}" for name, now in inputs.items())
        content = f"to_json(named_struct({fields}), map('ignoreNullFields', 'false'))"
        own = {"topic": f"coalesce(topic, {literal(made)})", VALUE: f"CAST({content} AS BINARY)"}
        is_made = f"{is_bad} AND {KAFKA_MS} IS NULL"
        columns |= {name: f"CASE WHEN {is_made} THEN {text} ELSE {name} END" for name, text in own.items()}
    branched.set(columns)


@dataclass(frozen=True, slots=True)
class _ChainOfTask:
    """Runs a chain whose functions are closed when the task ends."""

    chain: PassingChain

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with closing(self.chain):
            yield from self.chain.run(batches)


@dataclass(frozen=True, slots=True)
class _KeptChain:
    """Runs a chain whose functions stay open as long as the worker runs."""

    name: str
    chain: WorkerObject[PassingChain]
    times: TaskTimes

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self.chain.use() as chain:
            yield from self.times.run(self.name, chain.run, batches)


def _carried_and_passing(branched: BranchedFrame, kept: Collection[str]) -> tuple[list[str], list[str]]:
    """The columns that an output takes from its record, and all columns that pass a chain."""
    existing = set(branched.frame.columns)
    carried = [name for name in _OF_A_RECORD if name in existing]
    passing = [*carried, *(name for name in _OF_MESSAGES if branched.shared and name in existing)]
    return carried, [*passing, *dict.fromkeys(kept), *([BRANCH] if branched.shared else [])]


def _backlog_column(chain: Chain, branched: BranchedFrame, *, lags: bool) -> str | None:
    """The column of the records' backlog status, which is added if it is missing; None if nobody asks."""
    if not reads_attributes(chain):
        return None
    if BACKLOG not in branched.frame.columns:
        branched.set({BACKLOG: str(lags).lower()})
    return BACKLOG


def _input_columns(
    head: ChainOperator, branch: Branch, used: Mapping[Operator, Collection[str]]
) -> dict[str, str]:
    """The columns that a chain reads, by name, and their names in the rows."""
    reads = head.columns_read(used[head])
    return {name: now for name, now in branch.columns.items() if name.lower() in reads}


def _select(frame: DataFrame, names: Iterable[str]) -> DataFrame:
    needed = list(map(quote, dict.fromkeys(names)))
    return frame.selectExpr(*(needed or [f"true AS {_ROW}"]))  # without a column rows are lost


@dataclass(frozen=True, slots=True)
class _BranchedOutlets:
    """The outlets of a chain, each with its branch.

    Attributes:
        share_rows: Their rows, or those of other branches, are in one frame, and say to which branch they
            belong.
    """

    outlets: Sequence[ChainOutlet]
    branches: Mapping[ChainOperator, Branch]
    share_rows: bool

    def columns(self, passing: Mapping[str, DataType]) -> dict[str, DataType]:
        """The types of the columns downstream of the chain: those that pass it, and its outputs'."""
        columns = dict(passing)
        if self.share_rows:
            columns.setdefault(BRANCH, IntegerType())
        for outlet in self.outlets:
            names = self.branches[outlet.node].columns
            columns |= {names[name]: kind for name, kind in outlet.types.items()}
        return columns

    def rows(self, steps: Mapping[Operator, str]) -> list[OutletRows]:
        return [
            OutletRows(
                branch=self.branches[outlet.node].number if self.share_rows else None,
                columns=self.branches[outlet.node].columns,
                step=steps.get(outlet.node, "") if outlet.multiplied or outlet.batched else None,
            )
            for outlet in self.outlets
        ]


def _branch_outlets(
    outlets: Sequence[ChainOutlet], branched: BranchedFrame, branch: Branch, numbers: Iterator[int]
) -> _BranchedOutlets:
    branches = {
        outlet.node: Branch(
            branch.number if len(outlets) == 1 else next(numbers),
            {name: next(branched.names) for name in outlet.types},
            has_coordinates=branch.has_coordinates,
            has_record_id=branch.has_record_id,
        )
        for outlet in outlets
    }
    return _BranchedOutlets(outlets, branches, share_rows=branched.shared or len(branches) > 1)
