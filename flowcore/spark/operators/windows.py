"""Windows in a live query: from a branch's records to branches of results and of late records."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pyarrow as pa

from flowcore.api.operators import SideOutput, Window
from flowcore.api.stateful import LATE_OUTPUT
from flowcore.api.window_operator import WINDOW_COLUMNS
from flowcore.keyed import output_columns
from flowcore.keyed.dead_letters import DEAD_LETTERS, DeadLetters
from flowcore.keyed.operator import KeyGroupOperator
from flowcore.keyed.output_columns import ORDINAL as OUTPUT
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.rows import BRANCH, RECORD_ID, RECORD_ORDINAL, SOURCE, TIMESTAMP_MS, RowKind
from flowcore.spark.frame.sql import displayable_timestamp, literal, quote
from flowcore.spark.operators.buffers import buffered
from flowcore.spark.operators.by_key import (
    OF,
    OWN,
    STAMP,
    ByKey,
    Stepped,
    coordinates,
    given,
    packed,
    places,
    put_out,
    records_of,
    topic_case,
    with_columns,
)
from flowcore.spark.operators.dead_letters import letter_columns, letters_for
from flowcore.spark.operators.python_chain import arrow_schema, types_of
from flowcore.windows.columnar.keyed import ColumnarWindows
from flowcore.windows.columnar.result_types import result_type
from flowcore.windows.keyed import RecordWindows

__all__ = ["operator_of", "windowed"]


def windowed(
    node: Window, branched: BranchedFrame, branch: Branch, used: Collection[str], of: ByKey
) -> tuple[BranchedFrame, Mapping[str, Branch]]:
    """The results of windows over a branch's records and, where they leave, late records.

    Args:
        node: The windows.
        branched: Rows, the branch's among them.
        branch: The records.
        used: The input's columns that readers of late records use, in lower case.
        of: The query.
    """
    computed = {name: branch.expression(expression) for name, expression in node.computed}
    if computed:
        branch = branched.compute(branch, computed, [*branch.columns, *computed])
    late = _late_columns(node, branch, used, of)
    columns = _record_columns(node, branch, late)
    frame = given(node.by, branched, branch, columns, of)
    rows = records_of(frame, columns)
    letters = None if _folded(node, rows) else letters_for(of, (*node.by, *_values(node)))
    if letters is not None:
        columns |= coordinates(of)
        frame = given(node.by, branched, branch, columns, of)
        rows = records_of(frame, columns)
    keys = (*node.by, output_columns.START, output_columns.END)
    operator = buffered(node, operator_of(node, rows, tuple(late), letters), keys, of)
    results = Branch(next(of.numbers), {}, has_coordinates=False, has_record_id=True)
    later = Branch(next(of.numbers), {})
    outputs = {
        output_columns.RESULTS: (results.number, operator.outputs[output_columns.RESULTS]),
        LATE_OUTPUT: (later.number, operator.outputs[LATE_OUTPUT]),
    }
    if letters is not None:
        outputs[DEAD_LETTERS] = (RowKind.BAD, operator.outputs[DEAD_LETTERS])
    stepped = put_out(node, packed(node, frame, operator, rows, of), outputs, branched)
    return _branches(node, stepped, branched, (results, later), late, of)


def operator_of(
    node: Window, rows: pa.Schema, late: tuple[str, ...], letters: DeadLetters | None = None
) -> KeyGroupOperator:
    """What is done in a key group: by column where that gives the same, else record by record.

    Args:
        node: The windows.
        rows: The columns of records, `flowcore.spark.operators.by_key.STAMP` among them.
        late: Those of late records.
        letters: Which failures of its functions leave.
    """
    types = {field.name: field.type for field in rows}
    if _folded(node, rows):
        return ColumnarWindows(config=node.config, keys=node.by, timestamp=STAMP, rows=rows, late=late)
    return RecordWindows(
        name=node.name,
        config=node.config,
        keys=node.by,
        key_of=node.key_of,
        values=tuple(_values(node)),
        timestamp=STAMP,
        rows=rows,
        results=_results(node, types),
        late=late,
        dead_letters=letters,
    )


def _folded(node: Window, rows: pa.Schema) -> bool:
    """By column, where no user's function is asked for a record."""
    return ColumnarWindows.refusal(node.config, {field.name: field.type for field in rows}) is None


def _values(node: Window) -> list[str]:
    """The columns of a record as functions see it."""
    return list(dict.fromkeys([*node.uses, *(name for name, _ in node.computed)]))


def _results(node: Window, types: Mapping[str, pa.DataType]) -> pa.Schema:
    if node.schema is not None:
        return arrow_schema(types_of(node.schema))
    known = {name.lower(): kind for name, kind in types.items()}
    if not node.built_in:
        return pa.schema([(name, known[name.lower()]) for name in node.values])
    return pa.schema([(name, result_type(each, types)) for name, each in node.built_in])


def _late_columns(node: Window, branch: Branch, used: Collection[str], of: ByKey) -> dict[str, str]:
    """The columns that late records leave with, and what these are called in front of the windows."""
    if not any(isinstance(each, SideOutput) and node in each.inputs for each in of.query.operators):
        return {}
    columns = {name: now for name, now in branch.columns.items() if name.lower() in used}
    return {**columns, **coordinates(of)}


def _record_columns(node: Window, branch: Branch, late: Mapping[str, str]) -> dict[str, str]:
    """Every column that records need, and what it is called in front of the windows."""
    read = [column for _, each in node.built_in for column in each.columns] if node.built_in else node.uses
    known = {name.lower(): (name, now) for name, now in branch.columns.items()}
    names = [*node.by, *read, *(name for name, _ in node.computed)]
    return {**{name: known[name.lower()][1] for name in names}, **late}


def _branches(  # noqa: PLR0917 - what was made on the way
    node: Window,
    stepped: Stepped,
    branched: BranchedFrame,
    branches: tuple[Branch, Branch],
    late: Mapping[str, str],
    of: ByKey,
) -> tuple[BranchedFrame, Mapping[str, Branch]]:
    results, later = branches
    physical = stepped.physical
    found = physical[output_columns.RESULTS]
    columns = {name: found[name] for name in node.columns if name in found}
    shown = {
        "window_start": displayable_timestamp(found[output_columns.START]),
        "window_end": displayable_timestamp(found[output_columns.END]),
        "firing": found[output_columns.FIRING],
        "is_late": found[output_columns.IS_LATE],
    }
    made = {name: next(branched.names) for name in WINDOW_COLUMNS}
    texts = {now: shown[name] for name, now in made.items()}
    texts |= _beside(node, results, physical, of)
    if late:
        texts |= places(stepped.frame, _coordinates(physical[LATE_OUTPUT], of))
    if DEAD_LETTERS in physical:
        texts |= letter_columns(physical[DEAD_LETTERS], of, texts, stepped.frame.columns)
    after = BranchedFrame(
        with_columns(stepped.frame, texts),
        branched.names,
        has_coordinates=bool(late),
        has_markers=branched.has_markers,
        has_bad=branched.has_bad or DEAD_LETTERS in physical,
    )
    after.shared = True
    ordered = {name: {**columns, **made}[name] for name in node.columns}
    late_columns = {name: physical[LATE_OUTPUT][name] for name in late if not name.startswith(OWN)}
    return after, {
        output_columns.RESULTS: replace(results, columns=ordered),
        LATE_OUTPUT: replace(later, columns=late_columns),
    }


def _beside(
    node: Window,
    results: Branch,
    physical: Mapping[str, Mapping[str, str]],
    of: ByKey,
) -> dict[str, str]:
    """What rows carry beside their columns: identity and timestamp."""
    found, mine = physical[output_columns.RESULTS], f"{BRANCH} = {results.number}"
    keys = ", ".join(f"{found[name]} AS {quote(name)}" for name in node.by)
    key = f"to_json(struct({keys}))" if keys else "'{}'"
    parts = [
        literal(node.name),
        key,
        found[output_columns.START],
        found[output_columns.END],
        found[output_columns.FIRING],
    ]
    if OUTPUT in found:
        parts.append(found[OUTPUT])
    texts = {
        RECORD_ID: f"CASE WHEN {mine} THEN concat_ws(':', {', '.join(parts)}) END",
        TIMESTAMP_MS: found[output_columns.TIMESTAMP],
    }
    if of.has_ordinals:
        texts[RECORD_ORDINAL] = "'0'"
    return texts


def _coordinates(where: Mapping[str, str], of: ByKey) -> dict[str, str]:
    """Where late records were."""
    texts = {
        "topic": topic_case(where[OF + SOURCE], of),
        "partition": where[OF + "partition"],
        "offset": where[OF + "offset"],
    }
    if of.has_ordinals:
        texts[RECORD_ORDINAL] = f"coalesce({where[OF + RECORD_ORDINAL]}, '0')"
    return texts
