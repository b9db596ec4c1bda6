"""Operators with state as their exchange runs them: what they read, how they run, and what they emit.

The module of an operator describes it as a `KeyedStep`; `select_inputs` adds what follows from the frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from flowcore.api.operators import MapBatches, Operator
from flowcore.flush.buffered import BufferedOperator
from flowcore.flush.config import BufferOutput
from flowcore.flush.operator import FlushBuffers
from flowcore.flush.quiet_input import QUIET_MS
from flowcore.keyed.dead_letters import DEAD_LETTERS, DeadLetters
from flowcore.keyed.operator import KeyGroupOperator
from flowcore.keyed.output_columns import RESULTS, TIMESTAMP
from flowcore.planner.model import Flush
from flowcore.planner.ways import find_origins
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.rows import RECORD_ID, RECORD_ORDINAL, TIMESTAMP_MS, RowKind
from flowcore.spark.frame.sql import quote
from flowcore.spark.operators.key_group_context import PASSED, RECORD_TIMESTAMP, KeyGroupContext
from flowcore.spark.operators.keys import canonical_key, key_group_text
from flowcore.spark.topics.formats.sql_format import within_calendar

__all__ = [
    "Columns", "KeyedStep", "StepMember", "StepOutput", "key_and_passed_columns", "make_buffer",
    "select_inputs", "spread_null_keys",
]  # fmt: skip

Columns = Mapping[str, str]
"""Names of columns, or SQL texts, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """An output of an operator that is read, as a branch of the exchange's rows.

    Attributes:
        nodes: The operators whose output it is for their readers.
        number: The number of the branch.
        columns: The columns of the branch: the output's column, or one that is computed of them, by name.
        passed: The branch upstream whose records the operator passes on as they are; None if it makes new
            records.
        kept: The engine's columns that are columns of the output.
        computed: Makes SQL texts of columns of the names that the output's columns have in the rows.
        record_id: The same for the id of new records; None if it is unknown what each was made from.
        ordinal: The same for their `RECORD_ORDINAL`.
    """

    nodes: Sequence[Operator]
    number: int
    columns: Columns
    passed: Branch | None = None
    kept: Sequence[str] = ()
    computed: Callable[[Columns], Columns] = lambda _: {}
    record_id: Callable[[Columns], str] | None = None
    ordinal: Callable[[Columns], str] = lambda _: "'0'"

    def find_texts(self, found: Columns, context: KeyGroupContext) -> dict[str, str]:
        """SQL texts of the engine's columns of its records."""
        if self.passed is not None:
            kept = {name: found[name] for name in self.kept}
            return context.passed_texts(self.nodes, found) | kept
        texts = {} if self.record_id is None else {RECORD_ID: self.record_id(found)}
        if not context.query.timestamped.isdisjoint(self.nodes):
            texts[TIMESTAMP_MS] = found[TIMESTAMP]
        if context.has_ordinals:
            texts[RECORD_ORDINAL] = self.ordinal(found)
        return texts


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedStep:
    """What an operator with state reads, how it runs, and what it emits.

    Attributes:
        keys: The names of the columns of its key.
        branch: The branch of its records; of several branches, one with what their rows carry.
        columns: A record's columns: their name in key groups, and in the frame.
        make: Makes the operator, from the columns of a record (its timestamp, then ``columns``), and the
            failures that become dead letters.
        outputs: The outputs that are read, by name.
        with_coordinates: The operator needs the coordinates of records.
        shown: The columns of a record that a user's functions receive; None without such functions.
        record: SQL text that is true for the operator's records; None if these are all records of the branch.
        spreads_null_keys: Records without key need no common key group.
        identifying: Columns that identify a record in its key: like those of the key, their values are equal
            in Spark and in Python.
        row_name: A column that, if it is not null, decides about the key group of a record without key.
        compared: Columns whose values are compared in Python: a date or time that it lacks is null.
        result_key: The columns of its results of which a buffer keeps the latest, if the plan has one for it.
    """

    node: Operator
    context: KeyGroupContext
    keys: Sequence[str]
    branch: Branch
    columns: Columns
    make: Callable[[pa.Schema, DeadLetters | None], KeyGroupOperator]
    outputs: Mapping[str, StepOutput]
    with_coordinates: bool = True
    shown: Sequence[str] | None = None
    record: str | None = None
    spreads_null_keys: bool = False
    identifying: Sequence[str] = ()
    row_name: str | None = None
    compared: Sequence[str] = ()
    result_key: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMember:
    """An operator with state in an exchange.

    Attributes:
        record: SQL text that is true for its records.
        key_group: SQL text of a record's key group.
        keys: The columns of its key.
        columns: SQL texts of a record's columns, by the names that they have in key groups.
        records: The columns of a record as the operator receives it.
        packed: The columns of a record that are shuffled: without the timestamp if records have none.
        dead_letters: Which failures become dead letters; None if each failure stops the query.
    """

    step: KeyedStep
    operator: KeyGroupOperator
    record: str
    key_group: str
    keys: pa.Schema
    columns: Columns
    records: pa.Schema
    packed: pa.Schema
    dead_letters: DeadLetters | None

    @property
    def branches(self) -> Mapping[str, int]:
        """The branch of each output that is read; dead letters are in that of bad records."""
        numbers = {name: output.number for name, output in self.step.outputs.items()}
        return {**numbers, **({DEAD_LETTERS: RowKind.BAD} if self.dead_letters else {})}


def key_and_passed_columns(branch: Branch, by: Sequence[str], passed: Iterable[str]) -> Columns:
    """A branch's columns of the key under their names, and those of a record that is emitted as `PASSED`."""
    physical = branch.physical_names
    keys = {name: physical[name.lower()] for name in by}
    return keys | {f"{PASSED}{name}": physical[name.lower()] for name in passed}


def select_inputs(step: KeyedStep, branched: BranchedFrame) -> StepMember:
    """Select the records of an operator in a frame, and make the operator of their types."""
    node, context = step.node, step.context
    dead_letters = None
    if step.shown is not None and (routed := context.query.key_group_dead_letters):
        sources = tuple(
            each not in context.senders or all(source in routed for source in each.live_sources)
            for each in context.sources
        )
        if any(isinstance(each, MapBatches) for each in node.upstream):  # a batch may be of several sources
            sources = (all(sources),) * len(sources)
        dead_letters = DeadLetters(
            sources=sources, shown=tuple(step.shown), places=tuple(context.coordinates)
        )
    schema = branched.frame.schema
    kinds = {field.name.lower(): field.dataType for field in schema.fields}
    texts = {name: quote(now) for name, now in step.columns.items()}
    equal = (*step.keys, *step.identifying)
    texts |= {name: canonical_key(schema, step.columns[name], name) for name in equal}
    for name in (*equal, *step.compared):  # in Spark as in Python
        texts[name] = within_calendar(texts[name], kinds[step.columns[name].lower()])
    if step.with_coordinates or dead_letters:
        texts |= context.coordinate_texts(step.branch)
    selected = branched.frame.selectExpr(*(f"{text} AS {quote(name)}" for name, text in texts.items()))
    others = to_arrow_schema(selected.schema, timezone="UTC")
    records = pa.schema([pa.field(RECORD_TIMESTAMP, pa.int64()), *others])
    timed = TIMESTAMP_MS in branched.frame.columns
    record = branched.is_in(step.branch) if step.record is None else step.record
    if node.needs_timestamps and not context.side_channels.untimed_sources.isdisjoint(find_origins([node])):
        record += f" AND {TIMESTAMP_MS} IS NOT NULL"
    key_group = key_group_text([texts[name] for name in step.keys], context.query.key_groups)
    if step.spreads_null_keys:
        key_group = spread_null_keys(step, key_group, texts)
    operator = step.make(records, dead_letters)
    if step.result_key is not None and (flush := context.query.buffers.get(node)):
        buffer = make_buffer(flush, step.result_key, TIMESTAMP, operator.outputs[RESULTS], context)
        operator = BufferedOperator(operator=operator, buffer=buffer)
    return StepMember(
        step=step,
        operator=operator,
        record=record,
        key_group=key_group,
        keys=pa.schema([records.field(name) for name in step.keys]),
        columns={RECORD_TIMESTAMP: TIMESTAMP_MS, **texts} if timed else texts,
        records=records,
        packed=records if timed else others,
        dead_letters=dead_letters,
    )


def spread_null_keys(step: KeyedStep, key_group: str, texts: Columns) -> str:
    """SQL text of a key group, with another one for records without key."""
    key_groups = step.context.query.key_groups
    has_key = " AND ".join(f"{texts[name]} IS NOT NULL" for name in step.keys)
    cases = [f"WHEN {has_key} THEN {key_group}"]
    if step.row_name is not None:
        name = texts[step.row_name]
        cases.append(f"WHEN {name} IS NOT NULL THEN {key_group_text([name], key_groups)}")
    spread = f"CAST(pmod(coalesce(partition, 0), {key_groups}) AS INT)"
    return f"CASE {' '.join(cases)} ELSE {spread if step.context.reads_topics else key_group} END"


def make_buffer(
    flush: Flush, keys: Sequence[str], timestamp: str, rows: pa.Schema, context: KeyGroupContext
) -> FlushBuffers:
    """The buffer that the plan has for rows with these keys."""
    config, quiet_ms = flush.config or BufferOutput(None), None
    if config.max_entries is not None:
        config = replace(config, max_entries=max(1, config.max_entries // context.query.key_groups))
    if context.query.mode.value != "slice":
        quiet_ms = min(config.interval_ms or 0, QUIET_MS)
    return FlushBuffers(config=config, quiet_ms=quiet_ms, keys=tuple(keys), timestamp=timestamp, rows=rows)
