"""Windows in a live query: from a branch's records to branches of results and of late records."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import pyarrow as pa

from flowcore.api.operators import Operator, Window
from flowcore.api.stateful import LATE_OUTPUT, find_side_outputs
from flowcore.api.window_operator import WINDOW_COLUMNS
from flowcore.keyed.dead_letters import DEAD_LETTERS, DeadLetters
from flowcore.keyed.operator import KeyGroupOperator
from flowcore.keyed.output_columns import END, FIRING, IS_LATE, ORDINAL, RESULTS, START, TIMESTAMP
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.record_ids import key_text
from flowcore.spark.frame.rows import INPUT_ID, RECORD_ID, RECORD_ORDINAL, SOURCE, TIMESTAMP_MS, RowKind
from flowcore.spark.frame.sql import displayable_timestamp, literal
from flowcore.spark.operators.buffers import add_buffer
from flowcore.spark.operators.dead_letters import route_dead_letters
from flowcore.spark.operators.keyed_step import (
    COORDINATE_PREFIX,
    RECORD_TIMESTAMP,
    KeyGroupContext,
    StepMember,
    StepOutput,
    select_inputs,
)
from flowcore.spark.operators.python_chain import arrow_schema, spark_types
from flowcore.windows.columnar.accumulators import result_type
from flowcore.windows.columnar.keyed import ColumnarWindows
from flowcore.windows.keyed import RecordWindows

__all__ = ["make_window_operator", "prepare_window", "window_texts"]


def prepare_window(
    node: Window, branched: BranchedFrame, branch: Branch, used: Collection[str], context: KeyGroupContext
) -> StepMember:
    """Windows over a branch's records, for their exchange; late records leave if they are read.

    Args:
        node: The windows.
        branched: The frame of the branch.
        branch: The records.
        used: The input's columns that readers of late records use, in lower case.
        context: The context of the windows.
    """
    computed = {name: branch.expression(expression) for name, expression in node.computed}
    if computed:
        branch = branched.compute(branch, computed, [*branch.columns, *computed])
    sides = find_side_outputs(node, context.query.operators)
    late = {name: now for name, now in branch.columns.items() if sides and name.lower() in used}
    columns = {**_record_columns(node, branch), **late}
    inputs = select_inputs(node, node.by, branched, branch, columns, context, with_coordinates=bool(sides))
    dead_letters = None
    if not _is_columnar(node, inputs.records):
        dead_letters = route_dead_letters(context, (*node.by, *_values(node)))
    if dead_letters is not None:
        inputs = select_inputs(node, node.by, branched, branch, columns, context, with_coordinates=True)
    late_names = (RECORD_TIMESTAMP, *late, *context.coordinates) if sides else ()
    windows = make_window_operator(node, inputs.records, late_names, dead_letters)
    branches = {RESULTS: next(context.numbers)}
    branches |= {LATE_OUTPUT: next(context.numbers)} if sides else {}
    branches |= {DEAD_LETTERS: RowKind.BAD} if dead_letters is not None else {}
    names = {name: next(branched.names) for name in WINDOW_COLUMNS}

    def finish(found: Mapping[str, Mapping[str, str]]) -> StepOutput:
        output = _finish_results(node, found[RESULTS], branches[RESULTS], names, context)
        if not sides:
            return output
        columns = {name: found[LATE_OUTPUT][name] for name in late}
        has_places = not context.reads_operators
        late_branch = Branch(
            branches[LATE_OUTPUT],
            columns,
            has_coordinates=has_places,
            has_record_id=not has_places and (branch.has_record_id or branch.has_coordinates),
        )
        by_branch = {name: dict(cases) for name, cases in output.by_branch.items()}
        late_texts = _late_texts(found[LATE_OUTPUT], context)
        if any(map(context.query.carries_timestamps, sides)):
            late_texts[TIMESTAMP_MS] = found[LATE_OUTPUT][RECORD_TIMESTAMP]
        for name, text in late_texts.items():
            by_branch.setdefault(name, {})[branches[LATE_OUTPUT]] = text
        outputs: dict[Operator, Branch] = {**output.branches, **dict.fromkeys(sides, late_branch)}
        return replace(output, by_branch=by_branch, branches=outputs)

    operator = add_buffer(node, windows, (*node.by, START, END), context)
    return StepMember(inputs, operator, branches, finish)


def _finish_results(
    node: Window, found: Mapping[str, str], number: int, names: Mapping[str, str], context: KeyGroupContext
) -> StepOutput:
    """The branch of results; ``names`` are those of `WINDOW_COLUMNS` in the frame."""
    texts = {RECORD_ID: _record_id(node, found, context)}
    if context.query.carries_timestamps(node):
        texts[TIMESTAMP_MS] = found[TIMESTAMP]
    if context.has_ordinals:
        texts[RECORD_ORDINAL] = "'0'"
    results = {name: {**found, **names}[name] for name in node.columns}
    return StepOutput(
        {node: Branch(number, results, has_coordinates=False, has_record_id=True)},
        dict(zip(names.values(), window_texts(found), strict=True)),
        {name: {number: text} for name, text in texts.items()},
    )


def _late_texts(found: Mapping[str, str], context: KeyGroupContext) -> dict[str, str]:
    """SQL texts of the coordinates of late records; their id if another operator made them."""
    texts: dict[str, str] = {}
    ids = []
    if context.reads_topics:
        places = {
            "topic": f"CASE {found[COORDINATE_PREFIX + SOURCE]} {context.topic_cases} END",
            "partition": found[COORDINATE_PREFIX + "partition"],
            "offset": found[COORDINATE_PREFIX + "offset"],
        }
        texts |= places
        ids.append(context.record_ids.of_place(*places.values()))
    if context.reads_operators:
        texts[RECORD_ID] = f"coalesce({', '.join([found[COORDINATE_PREFIX + INPUT_ID], *ids])})"
    if context.has_ordinals:
        texts[RECORD_ORDINAL] = f"coalesce({found[COORDINATE_PREFIX + RECORD_ORDINAL]}, '0')"
    return texts


def make_window_operator(
    node: Window, records: pa.Schema, late: tuple[str, ...], dead_letters: DeadLetters | None = None
) -> KeyGroupOperator:
    """The operator of windows: columnar if that gives the same results, otherwise record by record.

    Args:
        node: The windows.
        records: The columns of records, including `flowcore.spark.operators.keyed_step.RECORD_TIMESTAMP`.
        late: The columns of late records.
        dead_letters: Which failures of its functions become dead letters.
    """
    if _is_columnar(node, records):
        return ColumnarWindows(
            config=node.config, keys=node.by, timestamp=RECORD_TIMESTAMP, rows=records, late=late
        )
    types = {field.name: field.type for field in records}
    known = {name.lower(): kind for name, kind in types.items()}
    if node.schema is not None:
        results = arrow_schema(spark_types(node.schema))
    elif node.built_in:
        results = pa.schema([(name, result_type(each, types)) for name, each in node.built_in])
    else:
        results = pa.schema([(name, known[name.lower()]) for name in node.values])
    return RecordWindows(
        name=node.name,
        config=node.config,
        keys=node.by,
        key_of=node.key_of,
        values=tuple(_values(node)),
        timestamp=RECORD_TIMESTAMP,
        rows=records,
        results=results,
        late=late,
        dead_letters=dead_letters,
    )


def window_texts(found: Mapping[str, str]) -> tuple[str, ...]:
    """SQL texts of `WINDOW_COLUMNS`, from the columns of a window operator's results."""
    return (
        displayable_timestamp(found[START]), displayable_timestamp(found[END]), found[FIRING], found[IS_LATE],
    )  # fmt: skip


def _is_columnar(node: Window, records: pa.Schema) -> bool:
    return ColumnarWindows.refusal(node.config, {field.name: field.type for field in records}) is None


def _values(node: Window) -> list[str]:
    """The columns of a record that functions receive."""
    return list(dict.fromkeys([*node.uses, *(name for name, _ in node.computed)]))


def _record_columns(node: Window, branch: Branch) -> dict[str, str]:
    """The columns of a record: their name in key groups, and in the frame."""
    read = [column for _, each in node.built_in for column in each.columns] if node.built_in else node.uses
    names = [*node.by, *read, *(name for name, _ in node.computed)]
    return {name: branch.physical_names[name.lower()] for name in names}


def _record_id(node: Window, found: Mapping[str, str], context: KeyGroupContext) -> str:
    parts = [literal(context.record_ids.states[node]), key_text({name: found[name] for name in node.by})]
    parts += [found[name] for name in (START, END, FIRING, ORDINAL) if name in found]
    return f"concat_ws(':', {', '.join(parts)})"
