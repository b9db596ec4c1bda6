"""Windows in a live query: from a branch's records to branches of results and of late records."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pyarrow as pa

from flowcore.api.operators import Window
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
from flowcore.spark.operators.dead_letters import dead_letter_columns, route_dead_letters
from flowcore.spark.operators.keyed_step import (
    COORDINATE_PREFIX,
    PREFIX,
    RECORD_TIMESTAMP,
    KeyGroupContext,
    StepInputs,
    branch_after,
    run_step,
    select_inputs,
)
from flowcore.spark.operators.python_chain import arrow_schema, spark_types
from flowcore.spark.operators.step_rows import text_by_branch
from flowcore.windows.columnar.accumulators import result_type
from flowcore.windows.columnar.keyed import ColumnarWindows
from flowcore.windows.keyed import RecordWindows

__all__ = ["apply_window", "make_window_operator", "window_texts"]


def apply_window(
    node: Window, branched: BranchedFrame, branch: Branch, used: Collection[str], context: KeyGroupContext
) -> tuple[BranchedFrame, Mapping[str, Branch]]:
    """The results of windows over a branch's records and, if they are read, late records.

    Args:
        node: The windows.
        branched: The frame of the branch.
        branch: The records.
        used: The input's columns that readers of late records use, in lower case.
        context: The query.
    """
    computed = {name: branch.expression(expression) for name, expression in node.computed}
    if computed:
        branch = branched.compute(branch, computed, [*branch.columns, *computed])
    late: dict[str, str] = {}
    if sides := find_side_outputs(node, context.query.operators):
        late = {name: now for name, now in branch.columns.items() if name.lower() in used}
        late |= context.coordinates
    inputs, dead_letters = _select_window_inputs(node, branched, branch, late, context)
    late_names = (RECORD_TIMESTAMP, *late) if late else ()
    windows = make_window_operator(node, inputs.records, late_names, dead_letters)
    operator = add_buffer(node, windows, (*node.by, START, END), context)
    branches = {RESULTS: next(context.numbers), LATE_OUTPUT: next(context.numbers)}
    failed = {DEAD_LETTERS: RowKind.BAD} if dead_letters is not None else {}
    step = run_step(inputs, operator, {**branches, **failed}, context)

    found = step.columns[RESULTS]
    window_columns = {name: next(branched.names) for name in WINDOW_COLUMNS}
    texts = dict(zip(window_columns.values(), window_texts(found), strict=True))
    ids = {branches[RESULTS]: _record_id(node, found, context)}
    times = {branches[RESULTS]: found[TIMESTAMP]} if context.query.carries_timestamps(node) else {}
    if context.has_ordinals:
        texts[RECORD_ORDINAL] = "'0'"
    if late:
        if any(map(context.query.carries_timestamps, sides)):
            times[branches[LATE_OUTPUT]] = step.columns[LATE_OUTPUT][RECORD_TIMESTAMP]
        coordinates = _coordinates(step.columns[LATE_OUTPUT], context)
        if INPUT_ID in coordinates:
            ids[branches[LATE_OUTPUT]] = coordinates.pop(INPUT_ID)
        texts |= coordinates
    texts |= {RECORD_ID: text_by_branch(ids)}
    texts |= {TIMESTAMP_MS: text_by_branch(times)} if times else {}
    texts = step.replace(texts)
    if dead_letters is not None:
        texts |= dead_letter_columns(step.columns[DEAD_LETTERS], context, texts, step.frame.columns)
    has_bad = branched.has_bad or dead_letters is not None
    has_places = bool(late) and context.upstream is None
    has_coordinates = has_places or (branched.has_coordinates and bool(context.passing))
    after = branch_after(step, inputs, texts, has_coordinates=has_coordinates, has_bad=has_bad)
    results = {name: {**found, **window_columns}[name] for name in node.columns}
    late_columns = {name: step.columns[LATE_OUTPUT][name] for name in late if not name.startswith(PREFIX)}
    return after, {
        RESULTS: Branch(branches[RESULTS], results, has_coordinates=False, has_record_id=True),
        LATE_OUTPUT: Branch(
            branches[LATE_OUTPUT],
            late_columns,
            has_coordinates=has_places,
            has_record_id=not has_places and (branch.has_record_id or branch.has_coordinates),
        ),
    }


def _select_window_inputs(
    node: Window,
    branched: BranchedFrame,
    branch: Branch,
    late: Mapping[str, str],
    context: KeyGroupContext,
) -> tuple[StepInputs, DeadLetters | None]:
    """The inputs of the windows, with coordinates if their functions may make dead letters."""
    columns = _record_columns(node, branch, late)
    inputs = select_inputs(node, node.by, branched, branch, columns, context)
    if _is_columnar(node, inputs.records):
        return inputs, None
    dead_letters = route_dead_letters(context, (*node.by, *_values(node)))
    if dead_letters is not None:
        columns |= context.coordinates
        inputs = select_inputs(node, node.by, branched, branch, columns, context)
    return inputs, dead_letters


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


def _record_columns(node: Window, branch: Branch, late: Mapping[str, str]) -> dict[str, str]:
    """The columns of a record: their name in key groups, and in the frame."""
    read = [column for _, each in node.built_in for column in each.columns] if node.built_in else node.uses
    names = [*node.by, *read, *(name for name, _ in node.computed)]
    return {**{name: branch.physical_names[name.lower()] for name in names}, **late}


def _record_id(node: Window, found: Mapping[str, str], context: KeyGroupContext) -> str:
    parts = [literal(context.record_ids.states[node]), key_text({name: found[name] for name in node.by})]
    parts += [found[name] for name in (START, END, FIRING, ORDINAL) if name in found]
    return f"concat_ws(':', {', '.join(parts)})"


def _coordinates(found: Mapping[str, str], context: KeyGroupContext) -> dict[str, str]:
    """SQL texts of the coordinates of late records, or of their id if another operator made them."""
    if context.upstream is None:
        texts = {
            "topic": f"CASE {found[COORDINATE_PREFIX + SOURCE]} {context.topic_cases} END",
            "partition": found[COORDINATE_PREFIX + "partition"],
            "offset": found[COORDINATE_PREFIX + "offset"],
        }
    else:
        texts = {INPUT_ID: found[COORDINATE_PREFIX + INPUT_ID]}
    if context.has_ordinals:
        texts[RECORD_ORDINAL] = f"coalesce({found[COORDINATE_PREFIX + RECORD_ORDINAL]}, '0')"
    return texts
