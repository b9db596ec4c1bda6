"""Windows in a live query: from a branch's records to branches of results and of late records."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from flowcore.api.operators import Window
from flowcore.api.stateful import LATE_OUTPUT
from flowcore.api.window_operator import WINDOW_COLUMNS
from flowcore.keyed.dead_letters import DeadLetters
from flowcore.keyed.operator import KeyGroupOperator
from flowcore.keyed.output_columns import END, FIRING, IS_LATE, ORDINAL, RESULTS, START
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.record_ids import key_text
from flowcore.spark.frame.sql import displayable_timestamp, literal
from flowcore.spark.operators.chain_specs import arrow_schema, spark_types
from flowcore.spark.operators.key_group_context import RECORD_TIMESTAMP, KeyGroupContext
from flowcore.spark.operators.keyed_step import KeyedStep, StepOutput
from flowcore.spark.operators.ranking import require_sortable
from flowcore.windows.columnar.accumulators import result_type
from flowcore.windows.columnar.keyed import ColumnarWindows
from flowcore.windows.keyed import RecordWindows

__all__ = ["make_window_operator", "prepare_window", "window_texts"]


def prepare_window(
    node: Window, branched: BranchedFrame, branches: Sequence[Branch], context: KeyGroupContext
) -> KeyedStep:
    """Windows over a branch's records; late records leave if they are read."""
    (branch,) = branches
    computed = {name: branch.expression(expression) for name, expression in node.computed}
    stored = node.stored_columns(context.query.used_columns[node])
    uses = node.uses if stored is None else stored
    unused = {*node.uses} - {*uses}
    if computed:
        branch = branched.compute(branch, computed, [*branch.columns, *computed])
    sides = context.side_outputs.get(LATE_OUTPUT, ())
    read = {column.lower() for each in sides for column in context.query.used_columns[each]}
    late = {name: now for name, now in branch.columns.items() if name.lower() in read}
    physical = branch.physical_names
    columns = {name: physical[name.lower()] for name in (*node.by, *uses, *computed)} | late
    schema = arrow_schema({name: branched.frame.schema[now].dataType for name, now in columns.items()})
    types = {field.name: field.type for field in schema}
    late_names = (RECORD_TIMESTAMP, *late, *context.coordinates) if sides else ()

    def record_id(found: Mapping[str, str]) -> str:
        parts = [literal(context.record_ids.states[node]), key_text({name: found[name] for name in node.by})]
        parts += [found[name] for name in (START, END, FIRING, ORDINAL) if name in found]
        return f"concat_ws(':', {', '.join(parts)})"

    def times_of(found: Mapping[str, str]) -> Mapping[str, str]:
        own = {*node.columns} - {*node.by, *node.values}  # running aggregates have none, or some of their own
        return {name: text for name, text in window_texts(found).items() if name in own}

    outputs = {
        RESULTS: StepOutput(
            nodes=[node],
            number=next(context.numbers),
            columns={name: name for name in node.columns if name in node.by or name not in unused},
            computed=times_of,
            record_id=record_id,
        )
    }
    if sides:
        names = {name: name for name in late}
        outputs[LATE_OUTPUT] = StepOutput(
            nodes=sides, number=next(context.numbers), columns=names, passed=branch
        )
    return KeyedStep(
        node=node,
        context=context,
        keys=node.by,
        branch=branch,
        columns=columns,
        make=lambda records, dead_letters: make_window_operator(
            node, records, late_names, dead_letters, uses=uses
        ),
        outputs=outputs,
        with_coordinates=bool(sides),
        compared=[name for name, _ in node.ranking.order] if node.ranking is not None else (),
        shown=None if _is_columnar(node, types) else (*node.by, *_values(node, uses)),
        result_key=node.by if node.updating else (*node.by, START, END),
    )


def make_window_operator(
    node: Window,
    records: pa.Schema,
    late: tuple[str, ...],
    dead_letters: DeadLetters | None = None,
    *,
    uses: Sequence[str] | None = None,
) -> KeyGroupOperator:
    """The operator of windows: columnar if that gives the same results, otherwise record by record.

    Args:
        records: The columns of records, including `RECORD_TIMESTAMP`.
        dead_letters: Which failures of its functions become dead letters.
        uses: The columns that a record has of `Window.uses`, if not all.
    """
    uses = node.uses if uses is None else uses
    types = {field.name: field.type for field in records}
    if _is_columnar(node, types):
        return ColumnarWindows(
            config=node.config, keys=node.by, timestamp=RECORD_TIMESTAMP, rows=records, late=late
        )
    known = {name.lower(): kind for name, kind in types.items()}
    if node.schema is not None:
        results = arrow_schema(spark_types(node.schema))
    elif node.built_in:
        results = pa.schema([(name, result_type(each, types)) for name, each in node.built_in])
    elif (ranking := node.ranking) is not None:
        require_sortable(node.name, {name: types[name] for name, _ in ranking.order})
        kept = [(name, known[name.lower()]) for name in node.values[:-1] if name in uses]
        results = pa.schema([*kept, (ranking.rank, pa.int32())])
    else:
        results = pa.schema([(name, known[name.lower()]) for name in node.values])
    return RecordWindows(
        name=node.name,
        config=node.config,
        keys=node.by,
        key_of=node.key_of,
        values=tuple(_values(node, uses)),
        timestamp=RECORD_TIMESTAMP,
        rows=records,
        results=results,
        late=late,
        dead_letters=dead_letters,
        latest_only=node.updating,
    )


def window_texts(found: Mapping[str, str]) -> Mapping[str, str]:
    """SQL texts of `WINDOW_COLUMNS`, by name, from the columns of a window operator's results."""
    times = (displayable_timestamp(found[START]), displayable_timestamp(found[END]))
    return dict(zip(WINDOW_COLUMNS, (*times, found[FIRING], found[IS_LATE]), strict=True))


def _is_columnar(node: Window, types: Mapping[str, pa.DataType]) -> bool:
    return ColumnarWindows.refusal(node.config, types, latest_only=node.updating) is None


def _values(node: Window, uses: Sequence[str]) -> list[str]:
    """The columns of a record that functions receive."""
    return list(dict.fromkeys([*uses, *(name for name, _ in node.computed)]))
