"""Offer what an exchange has packed to the next exchange, beside the rows that Spark would make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from flowcore.keyed.arrow_expressions import Constant, Field
from flowcore.keyed.control import PARTITION_BITS
from flowcore.keyed.operator import CONTROL, CONTROL_ROWS
from flowcore.keyed.output_reader import (
    PACKED_SOURCE,
    READ_KEY_GROUP,
    READ_POSITION,
    ControlOutput,
    PassingOutput,
)
from flowcore.spark.frame.arrow_sql import ARROW_TYPES, NULL, TypedExpression, parse_expression
from flowcore.spark.frame.rows import (
    ELEMENT,
    KEY_GROUP,
    NEWEST,
    POSITION,
    RECORD_ID,
    RECORD_ORDINAL,
    SOURCE,
    TIMESTAMP_MS,
    VALUE,
)
from flowcore.spark.frame.sql import literal
from flowcore.spark.frame.unparsed import (
    MESSAGE_COLUMNS,
    OUTPUT_COLUMN,
    PackedOutput,
    UnparsedRows,
    UnparsedSource,
)
from flowcore.spark.operators.exchange_input import Place
from flowcore.spark.operators.key_group_context import KeyGroupContext, begins_channels
from flowcore.spark.operators.key_groups import StepRows
from flowcore.spark.operators.keyed_step import StepMember
from flowcore.spark.operators.processor import PASSING

__all__ = ["BranchOutput", "offer_packed"]

_TYPES = {kind: name for name, kind in ARROW_TYPES.items()}
_COORDINATES = (SOURCE, "partition", "offset")


@dataclass(frozen=True, slots=True)
class BranchOutput:
    """The columns of an output's records in the frame.

    Attributes:
        member: The number of its operator in the exchange.
        name: The name of the output.
        branch: The number of its branch.
        columns: The frame's column for each of the output.
        texts: SQL texts of other columns of the frame, by name.
    """

    member: int
    name: str
    branch: int
    columns: Mapping[str, str]
    texts: Mapping[str, str]


def offer_packed(  # noqa: PLR0917 - what the exchange has read, made and let pass
    outputs: Sequence[BranchOutput],
    members: Sequence[StepMember],
    rows: StepRows,
    passed: pa.Schema,
    place: Place,
    context: KeyGroupContext,
    *,
    parsed: DataFrame,
    after: UnparsedRows | None,
) -> UnparsedRows | None:
    """What an exchange has packed, for the next one; None if none follows, or only Spark can read it.

    Args:
        parsed: The frame that Spark makes of it.
        passed: The columns of rows that passed the exchange.
        after: The rows that the exchange has read, if Spark did not read them.
    """
    nodes = [member.step.node for member in members]
    numbers = [context.sources.index(node) for node in nodes]
    read = {source for node in nodes for source in node.live_sources}
    reported = {source for each in place.later if begins_channels(each) for source in each.live_sources}
    if (
        not place.later
        or rows.dead_letters
        or context.side_channels.reads_attributes
        or context.side_channels.has_markers
        or read & reported  # what was read of a topic is reported to a later exchange
        or not {*place.passing_numbers}.isdisjoint(numbers)  # elements pass, too
        or not _can_pass(passed)
    ):
        return None
    is_utf8 = after is not None and all(each.is_utf8 for each in after.sources)
    without_records: dict[str, ControlOutput | PassingOutput] = {
        _output_name(number, CONTROL): ControlOutput(source=number, schema=CONTROL_ROWS, element="element")
        for number in numbers
    }
    if passed.names:
        without_records[_output_name(-place.depth, PASSING)] = PassingOutput(
            schema=passed, value=VALUE, coordinates=_COORDINATES
        )

    def named(number: int) -> str:
        return f"concat({literal(_output_name(number, ''))}, output)"

    cases = " ".join(f"WHEN {nth} THEN {named(number)}" for nth, number in enumerate(numbers))
    names, nothing = MESSAGE_COLUMNS, "CAST(NULL AS BIGINT)"
    frame = rows.packed.selectExpr(
        f"{PACKED_SOURCE << PARTITION_BITS}L + key_group AS {names.channel}",
        f"{nothing} AS {names.offset}",
        f"content AS {names.value}",
        f"{nothing} AS {names.written_ms}",
        f"{nothing} AS {names.latest_ms}",
        f"CASE operator {cases} ELSE {named(-place.depth)} END AS {OUTPUT_COLUMN}",
    )
    return UnparsedRows(
        frame=frame,
        parsed=parsed,
        sources=[
            _source(each, numbers[each.member], members[each.member], is_utf8=is_utf8) for each in outputs
        ],
        without_records=without_records,
        reasons=() if after is None else after.reasons,
    )


def _output_name(number: int, output: str) -> str:
    """The name of an output in `OUTPUT_COLUMN`.

    The number is that of its operator. Of rows that passed the exchange it is the depth, negative.
    """
    return f"{number}/{output}"


def _can_pass(passed: pa.Schema) -> bool:
    """Whether rows with these columns can pass another exchange as text and one column of bytes."""
    has_bytes = {field.name for field in passed if pa.types.is_binary(field.type)}
    return not passed.names or (has_bytes - {ELEMENT} == {VALUE} and {*_COORDINATES} <= {*passed.names})


def _source(output: BranchOutput, number: int, member: StepMember, *, is_utf8: bool) -> UnparsedSource:
    schema = member.operator.outputs[output.name]
    columns: dict[str, TypedExpression | None] = {
        SOURCE: (Constant(number), "INT"),
        KEY_GROUP: (Field(READ_KEY_GROUP), "INT"),
        POSITION: (Field(READ_POSITION), "BIGINT"),
        **dict.fromkeys(("topic", "partition", "offset"), NULL),
        **dict.fromkeys((TIMESTAMP_MS, NEWEST, RECORD_ID, RECORD_ORDINAL), NULL),
    }
    for field in schema:
        columns[output.columns[field.name]] = Field(field.name), _TYPES.get(field.type, str(field.type))
    for name, text in output.texts.items():
        columns[name] = parse_expression(text, columns, is_utf8=is_utf8)
    return UnparsedSource(
        reader=PackedOutput(_output_name(number, output.name), schema),
        number=number,
        branch=output.branch,
        columns=columns,
        is_utf8=is_utf8,
    )
