"""Leave what an exchange has packed to the next exchange, beside the rows that Spark would make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from flowcore.keyed.arrow_expressions import Constant, Field
from flowcore.keyed.control import PARTITION_BITS
from flowcore.keyed.operator import CONTROL, CONTROL_ROWS
from flowcore.keyed.output_reader import KEY_GROUP as READ_KEY_GROUP
from flowcore.keyed.output_reader import OUTPUTS, Controls, Passing
from flowcore.keyed.output_reader import POSITION as READ_POSITION
from flowcore.spark.frame.arrow_sql import ARROW_TYPES, TypedExpression, parse_expression
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
from flowcore.spark.frame.unparsed import (
    MESSAGE_COLUMNS,
    NULL,
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

__all__ = ["OutputColumns", "leave_packed"]

_TYPES = {kind: name for name, kind in ARROW_TYPES.items()}
_PLACE = (SOURCE, "partition", "offset")


@dataclass(frozen=True, slots=True)
class OutputColumns:
    """The columns of an output's records in the frame.

    Attributes:
        place: The number of its operator in the exchange.
        name: The name of the output.
        branch: The number of its branch.
        columns: The frame's column for each of the output.
        texts: SQL texts of other columns of the frame, by name.
    """

    place: int
    name: str
    branch: int
    columns: Mapping[str, str]
    texts: Mapping[str, str]


def leave_packed(  # noqa: PLR0917 - what the exchange has read, made and let pass
    outputs: Sequence[OutputColumns],
    members: Sequence[StepMember],
    rows: StepRows,
    passed: pa.Schema,
    place: Place,
    context: KeyGroupContext,
    *,
    after: UnparsedRows | None,
) -> UnparsedRows | None:
    """What an exchange has packed, for the next one; None if none follows, or only Spark can read it.

    Its frame is not known yet.

    Args:
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
    is_valid = after is not None and all(each.is_valid for each in after.sources)
    unread: dict[str, Controls | Passing] = {
        f"{number}/{CONTROL}": Controls(source=number, schema=CONTROL_ROWS, element="element")
        for number in numbers
    }
    if passed.names:
        unread[f"-{place.depth}/{PASSING}"] = Passing(schema=passed, value=VALUE, place=_PLACE)
    cases = " ".join(f"WHEN {nth} THEN '{number}'" for nth, number in enumerate(numbers))
    names, nothing = MESSAGE_COLUMNS, "CAST(NULL AS BIGINT)"
    frame = rows.packed.selectExpr(
        f"{OUTPUTS << PARTITION_BITS}L + key_group AS {names.channel}",
        f"{nothing} AS {names.offset}",
        f"content AS {names.value}",
        f"{nothing} AS {names.written_ms}",
        f"{nothing} AS {names.latest_ms}",
        f"concat(CASE operator {cases} ELSE '-{place.depth}' END, '/', output) AS {OUTPUT_COLUMN}",
    )
    return UnparsedRows(
        frame=frame,
        parsed=rows.frame,
        sources=[
            _source(each, numbers[each.place], members[each.place], is_valid=is_valid) for each in outputs
        ],
        others=unread,
        reasons=() if after is None else after.reasons,
    )


def _can_pass(passed: pa.Schema) -> bool:
    """Whether rows with these columns can pass another exchange as text and one column of bytes."""
    has_bytes = {field.name for field in passed if pa.types.is_binary(field.type)}
    return not passed.names or (has_bytes - {ELEMENT} == {VALUE} and {*_PLACE} <= {*passed.names})


def _source(output: OutputColumns, number: int, member: StepMember, *, is_valid: bool) -> UnparsedSource:
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
        columns[name] = parse_expression(text, columns, is_valid=is_valid)
    return UnparsedSource(
        reader=PackedOutput(f"{number}/{output.name}", schema),
        number=number,
        branch=output.branch,
        columns=columns,
        is_valid=is_valid,
    )
