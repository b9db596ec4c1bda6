"""Python chains: which frame comes out of the Python operators that run in one call of a worker?

One ``mapInArrow`` for a chain, over its input columns and what must get past it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, IntegerType, StructField, StructType

from flowcore.api.operators import (
    ChainOperator,
    FlatMap,
    KeyedProcess,
    MapBatches,
    Operator,
    PythonTransform,
)
from flowcore.api.schema import Schema
from flowcore.chains import (
    ChainSpec,
    Copy,
    DownstreamChain,
    FailedRows,
    OutletRows,
    PassingChain,
    Receiver,
    Step,
)
from flowcore.planner.model import Chain
from flowcore.settings import CheckMode
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.rows import (
    BAD_REASON,
    BRANCH,
    CHANNEL,
    ELEMENT,
    FAILED_OPERATOR,
    KAFKA_MS,
    NEWEST,
    RECORD_ID,
    RECORD_ORDINAL,
    SOURCE,
    TIMESTAMP_MS,
    VALUE,
    RowKind,
)
from flowcore.spark.frame.sql import quote

__all__ = ["ChainOutlet", "arrow_schema", "behind", "chained", "outputs_of_bounded", "types_of"]

_COORDINATES = ("topic", "partition", "offset")
_OF_A_RECORD = (*_COORDINATES, RECORD_ORDINAL, TIMESTAMP_MS, RECORD_ID, SOURCE, NEWEST)
_OF_MESSAGES = (VALUE, BAD_REASON, KAFKA_MS, FAILED_OPERATOR, ELEMENT, CHANNEL)
_ROW = "_row"
_COPIES: Mapping[str, Copy] = {"reuse": "reuse", "shallow": "shallow", "deep": "deep"}


def outputs_of_bounded(
    chain: Chain, frame: DataFrame, used: Mapping[Operator, Collection[str]], ends: Collection[Operator],
    check: CheckMode,
) -> tuple[DataFrame, Mapping[Operator, DataFrame]]:  # fmt: skip
    """What comes out of a chain in a batch: one frame, and of each operator whose output leaves it, its part.

    Args:
        chain: The operators.
        frame: The input of the first.
        used: The output columns of each operator that are used, in lower case.
        ends: Operators whose whole output leaves the stage.
        check: Whether functions are watched.
    """
    branched = BranchedFrame(frame, (f"_c{number}" for number in count(1)), has_coordinates=False)
    branch = Branch(1, {column: column for column in frame.columns})
    branches = chained(chain, branched, branch, used=used, ends=ends, numbers=count(2), check=check)
    return branched.frame, {node: branched.rows_of(each) for node, each in branches.items()}


def chained(
    chain: Chain,
    branched: BranchedFrame,
    branch: Branch,
    *,
    used: Mapping[Operator, Collection[str]],
    numbers: Iterator[int],
    ends: Collection[Operator] = (),
    kept: Collection[str] = (),
    check: CheckMode = "off",
    last: bool = True,
) -> Mapping[ChainOperator, Branch]:
    """Run a chain on the rows of a branch; the branch of each operator whose output leaves it.

    Args:
        chain: The operators.
        branched: Rows, the branch's among them.
        branch: The chain's input.
        used: The output columns of each operator that are used, in lower case.
        numbers: Of new branches.
        ends: Operators whose whole output leaves, wherever they are in the chain.
        kept: The columns of other branches, which pass.
        check: Whether functions are watched.
        last: No other chain follows, for whose functions a record would have to keep its message's bytes.
    """
    reads = chain.head.columns_read(used[chain.head])
    inputs = {name: now for name, now in branch.columns.items() if name.lower() in reads}
    there = set(branched.frame.columns)
    of_a_record = [name for name in _OF_A_RECORD if name in there]
    of_messages = [name for name in _OF_MESSAGES if name in there] if branched.shared else []
    passing = [*of_a_record, *of_messages, *dict.fromkeys(kept)] + ([BRANCH] if branched.shared else [])
    may_fail = branched.has_bad and FAILED_OPERATOR in there and branch.has_coordinates
    of_a_record += [VALUE, KAFKA_MS] if may_fail and not last else []
    needed = list(map(quote, dict.fromkeys([*passing, *inputs.values()])))
    # Without a column Spark would not tell how many rows there are.
    frame = branched.frame.selectExpr(*(needed or [f"true AS {_ROW}"]))
    types = {field.name: field.dataType for field in frame.schema.fields}
    writer = _SpecWriter(chain, used, ends)
    spec = writer.spec({name: types[now] for name, now in inputs.items()})

    outlets = writer.outlets
    parted = branched.shared or len(outlets) > 1
    branches = {
        outlet.node: Branch(
            branch.number if len(outlets) == 1 else next(numbers),
            {name: next(branched.names) for name in outlet.types},
            has_coordinates=branch.has_coordinates and not outlet.batched,
            has_record_id=branch.has_record_id and not outlet.batched,
        )
        for outlet in outlets
    }
    columns = {name: types[name] for name in passing}
    if parted:
        columns[BRANCH] = types.get(BRANCH, IntegerType())
    for outlet in outlets:
        columns |= {branches[outlet.node].columns[name]: kind for name, kind in outlet.types.items()}
    result = _struct(columns)
    run = PassingChain(
        spec=spec,
        check=check,
        inputs=inputs,
        branch=BRANCH if parted else None,
        number=branch.number if branched.shared else None,
        carried=of_a_record,
        ordinal=RECORD_ORDINAL if RECORD_ORDINAL in there else None,
        coordinates=_COORDINATES if there.issuperset(_COORDINATES) else (),
        outlets=[
            OutletRows(
                branch=branches[outlet.node].number if parted else None,
                columns=branches[outlet.node].columns,
                step=next(branched.names) if outlet.multiplied else None,
            )
            for outlet in outlets
        ],
        failed=FailedRows(branch=RowKind.BAD, value=VALUE, reason=BAD_REASON, operator=FAILED_OPERATOR)
        if may_fail
        else None,
        schema=to_arrow_schema(result, timezone="UTC"),
    )
    branched.frame = frame.mapInArrow(run.run, result)
    branched.shared = parted
    return branches


@dataclass(frozen=True, slots=True)
class ChainOutlet:
    """What leaves a chain at an operator.

    Attributes:
        node: The operator.
        types: Of its columns that are used.
        multiplied: A record of the input may become several.
        batched: It is not known of which record one was made.
    """

    node: ChainOperator
    types: Mapping[str, DataType]
    multiplied: bool
    batched: bool


def behind(
    chain: Chain, used: Mapping[Operator, Collection[str]], ends: Collection[Operator] = (),
    check: CheckMode = "off", *, lenient: bool = False,
) -> tuple[DownstreamChain, Sequence[ChainOutlet]]:  # fmt: skip
    """A chain that begins with a keyed process, to be run by its key groups, and where records leave it.

    Args:
        chain: The chain.
        used: The output columns of each operator that are used, in lower case.
        ends: Operators whose whole output leaves.
        check: Whether functions are watched.
        lenient: Records for which a function fails are put aside.
    """
    writer = _SpecWriter(chain, used, ends)
    spec = writer.spec(types_of(chain.head.schema) if isinstance(chain.head, KeyedProcess) else {})
    return DownstreamChain(spec=spec, check=check, isolate_failures=lenient), writer.outlets


class _SpecWriter:
    """Writes down what a chain of the plan is to a worker.

    Args:
        chain: The chain.
        used: The output columns of each operator that are used, in lower case.
        ends: Operators whose whole output leaves.

    Attributes:
        outlets: Where records leave, by number; known when `spec` has been called.
    """

    def __init__(
        self, chain: Chain, used: Mapping[Operator, Collection[str]], ends: Collection[Operator]
    ) -> None:
        self.chain = chain
        self.used = used
        self.ends = ends
        self.outlets: list[ChainOutlet] = []

    def spec(self, given: Mapping[str, DataType]) -> ChainSpec:
        """The chain over an input of columns with their types."""
        head = self._step(self.chain.head, given, multiplied=False, batched=False)
        return ChainSpec(arrow_schema(given), head)

    def _step(
        self, node: ChainOperator, given: Mapping[str, DataType], *, multiplied: bool, batched: bool
    ) -> Step:
        types = types_of(node.schema) if isinstance(node, PythonTransform | KeyedProcess) else given
        multiplied = multiplied or isinstance(node, FlatMap)
        batched = batched or isinstance(node, MapBatches)
        attributes = node.attributes()
        outlet, leaving, outlet_copy = None, types, "reuse"
        if node in self.chain.outputs or node in self.ends:
            outlet = len(self.outlets)
            if node not in self.ends:
                leaving = {name: kind for name, kind in types.items() if name.lower() in self.used[node]}
                leaving = leaving or dict(list(types.items())[:1])  # a row without columns would be none
            self.outlets.append(ChainOutlet(node, leaving, multiplied, batched))
            decided = self.chain.outputs.get(node)
            # Of records that others receive too, the output keeps its own.
            outlet_copy = (
                decided.value if decided else "deep" if attributes.output_value_stored else "shallow"
            )
        receivers = tuple(
            Receiver(
                self._step(receiver, types, multiplied=multiplied, batched=batched),
                _COPIES[self.chain.copies[node, receiver].value],
            )
            for receiver in self.chain.receivers(node)
        )
        return Step(
            name=node.name,
            kind=node.kind,
            function=_not_called if isinstance(node, KeyedProcess) else node.function,
            schema=arrow_schema(types),
            receivers=receivers,
            outlet=outlet,
            outlet_schema=arrow_schema(leaving),
            outlet_copy=_COPIES[outlet_copy],
            stores_output=attributes.output_value_stored,
            stores_input=attributes.input_record_stored,
        )


def _not_called(_: object) -> None:
    """A keyed process is called by its key groups."""


def types_of(schema: Schema) -> dict[str, DataType]:
    """Spark's types of a schema's columns."""
    ddl = ", ".join(f"{quote(column.name)} {column.type}" for column in schema.columns)
    parsed: Any = StructType.fromDDL(ddl)
    return {field.name: field.dataType for field in parsed.fields}


def _struct(types: Mapping[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


def arrow_schema(types: Mapping[str, DataType]) -> pa.Schema:
    """Columns of these types as Arrow has them."""
    schema: pa.Schema = to_arrow_schema(_struct(types), timezone="UTC")
    return schema
