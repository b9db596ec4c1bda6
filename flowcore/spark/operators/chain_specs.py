"""Describe a chain of the plan for the workers that run it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType

from flowcore.api.operators import ChainOperator, KeyedProcess, MapBatches, Operator, PythonTransform
from flowcore.api.schema import Schema
from flowcore.chains import ChainSpec, Copy, DownstreamChain, Receiver, Step
from flowcore.planner.model import Chain
from flowcore.settings import CheckMode
from flowcore.spark.frame.sql import quote

__all__ = [
    "ChainOutlet",
    "SpecWriter",
    "arrow_schema",
    "make_downstream_chain",
    "spark_struct",
    "spark_types",
]

_COPIES: Mapping[str, Copy] = {"reuse": "reuse", "shallow": "shallow", "deep": "deep"}


@dataclass(frozen=True, slots=True)
class ChainOutlet:
    """The records that leave a chain at an operator.

    Attributes:
        types: The types of its columns that are used.
        multiplied: An input record may become several.
        batched: It is unknown which input record a record was made from.
    """

    node: ChainOperator
    types: Mapping[str, DataType]
    multiplied: bool
    batched: bool


def make_downstream_chain(
    chain: Chain, used: Mapping[Operator, Collection[str]], ends: Collection[Operator] = (),
    check: CheckMode = "off", *, isolate_failures: bool = False,
) -> tuple[DownstreamChain, Sequence[ChainOutlet]]:  # fmt: skip
    """A chain that begins with a keyed process and runs in its key groups, and the chain's outlets.

    The arguments are those of `apply_chain`. Records are set aside for which a function fails, if
    ``isolate_failures`` is true.
    """
    writer = SpecWriter(chain, used, ends)
    spec = writer.spec(spark_types(chain.head.schema) if isinstance(chain.head, KeyedProcess) else {})
    return DownstreamChain(spec=spec, check=check, isolate_failures=isolate_failures), writer.outlets


class SpecWriter:
    """Describes a chain of the plan for a worker; it has `outlets`, by number, once `spec` was called."""

    def __init__(
        self, chain: Chain, used: Mapping[Operator, Collection[str]], ends: Collection[Operator]
    ) -> None:
        self.chain = chain
        self.used = used
        self.ends = ends
        self.outlets: list[ChainOutlet] = []

    def spec(self, inputs: Mapping[str, DataType]) -> ChainSpec:
        """The chain, over an input with these types of columns."""
        head = self._step(self.chain.head, inputs, multiplied=False, batched=False)
        return ChainSpec(arrow_schema(inputs), head)

    def _step(
        self, node: ChainOperator, inputs: Mapping[str, DataType], *, multiplied: bool, batched: bool
    ) -> Step:
        types = spark_types(node.schema) if isinstance(node, PythonTransform | KeyedProcess) else inputs
        multiplied = multiplied or node.repeats_records
        batched = batched or isinstance(node, MapBatches)
        attributes = node.attributes()
        outlet, leaving, outlet_copy = None, types, "reuse"
        if node in self.chain.outputs or node in self.ends:
            outlet = len(self.outlets)
            if node not in self.ends:
                leaving = {name: kind for name, kind in types.items() if name.lower() in self.used[node]}
                leaving = leaving or dict(list(types.items())[:1])  # a row needs a column
            self.outlets.append(ChainOutlet(node, leaving, multiplied, batched))
            planned = self.chain.outputs.get(node)
            # The output has its own copy of records that other steps receive too.
            outlet_copy = (
                planned.value if planned else "deep" if attributes.output_value_stored else "shallow"
            )
        receivers = tuple(
            Receiver(self._step(receiver, types, multiplied=multiplied, batched=batched), _COPIES[copy.value])
            for (sender, receiver), copy in self.chain.copies.items()
            if sender is node
        )
        return Step(
            name=node.name,
            kind=node.kind,
            function=_called_by_key_groups if isinstance(node, KeyedProcess) else node.function,
            schema=arrow_schema(types),
            receivers=receivers,
            outlet=outlet,
            outlet_schema=arrow_schema(leaving),
            outlet_copy=_COPIES[outlet_copy],
            stores_output=attributes.output_value_stored,
            stores_input=attributes.input_record_stored,
        )


def _called_by_key_groups(_: object) -> None:
    """Stands for the function of a keyed process, which the chain does not call."""


def spark_types(schema: Schema) -> dict[str, DataType]:
    """Spark's types of a schema's columns."""
    ddl = ", ".join(f"{quote(column.name)} {column.type}" for column in schema.columns)
    parsed: Any = StructType.fromDDL(ddl)
    return {field.name: field.dataType for field in parsed.fields}


def spark_struct(types: Mapping[str, DataType]) -> StructType:
    """Spark's schema of columns with these types."""
    return StructType([StructField(name, kind) for name, kind in types.items()])


def arrow_schema(types: Mapping[str, DataType]) -> pa.Schema:
    """The Arrow schema of columns with these types."""
    schema: pa.Schema = to_arrow_schema(spark_struct(types), timezone="UTC")
    return schema
