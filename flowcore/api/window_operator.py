"""The window operator of a flow.

Its `flowcore.windows.WindowConfig` says what it does, over records that are mappings from column to value.
`Window.built_in` holds the aggregates that a runtime can fold column by column.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import ClassVar

from flowcore.api.decisions import Decision, Obstacle
from flowcore.api.expressions import Expression
from flowcore.api.functions import name_of, promises
from flowcore.api.node import Operator, Origins, trace, trace_each, trace_to_all
from flowcore.api.schema import Schema
from flowcore.api.stateful import AGGREGATE_INSTEAD, LATE_OUTPUT, StatefulOperator, late_outcome
from flowcore.api.window_assigners import GAP_COLUMN, GapColumn
from flowcore.durations import show_ms
from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.windows import (
    DynamicSessionWindows,
    EndOfStreamWindows,
    GlobalWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
)
from flowcore.windows.built_in import BuiltIn, BuiltIns
from flowcore.windows.config import WindowConfig
from flowcore.windows.functions import PlainProcess, WindowAggregate, WindowProcess, WindowReduce
from flowcore.windows.top_rows import TopRows
from flowcore.windows.triggers import Purging, kind_of

__all__ = ["WINDOW_COLUMNS", "Window"]

WINDOW_COLUMNS = ("window_start", "window_end", "firing", "is_late")
"""The last columns of every output of a window: TIMESTAMP, TIMESTAMP, INT, BOOLEAN.

The two times are null where a window has no such time: a global one, or one at the end of time.
"""

_OF_FIXED_LENGTH = (TumblingWindows, SlidingWindows, EndOfStreamWindows)
_ASSIGNERS = (*_OF_FIXED_LENGTH, SessionWindows, DynamicSessionWindows, GlobalWindows)
"""An assigner that is derived from one of them assigns as it likes."""
_IN_ORDER = frozenset({"first_value", "last_value", "collect_list"})


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Window(StatefulOperator):
    """Windows of records with equal keys, and what each emits.

    Its columns are those of ``by``, those of its values, then `WINDOW_COLUMNS`. A result's timestamp is the
    last millisecond of its window.

    Attributes:
        config: What is done, in the words of `flowcore.windows`. Values are records: a mapping with the
            columns of ``uses`` and ``computed``; outputs are records of ``values``.
        computed: ``(name, expression)`` of columns that are computed natively upstream of it, from the
            input's columns: arguments of aggregates, the gap of a session.
        values: The columns of what is emitted.
        schema: Their types, None where they follow from the input's: built-in aggregates, `WindowReduce`,
            `TopRows`.
        sql: ``(column, text)`` of the built-in aggregates as they were written.
    """

    state_kind: ClassVar[str] = "window"
    realtime_change: ClassVar[str] = AGGREGATE_INSTEAD

    by: tuple[str, ...]
    config: WindowConfig
    computed: tuple[tuple[str, Expression], ...] = ()
    uses: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    schema: Schema | None = None
    timestamp: Expression | None = None
    sql: tuple[tuple[str, str], ...] = ()

    @property
    def built_in(self) -> tuple[tuple[str, BuiltIn], ...]:
        """``(output column, aggregate)`` where the windows fold with built-in aggregates, else nothing."""
        match self.config.function:
            case WindowAggregate(function=BuiltIns(columns=columns)):
                return columns
            case _:
                return ()

    @property
    def ranking(self) -> TopRows | None:
        """How it ranks its records; None if it does something else."""
        function = self.config.function
        found = function.function if isinstance(function, WindowAggregate) else None
        return found if isinstance(found, TopRows) else None

    @property
    def functions(self) -> tuple[object, ...]:
        """The user's Python functions in it: the fold, then what makes the outputs."""
        function = self.config.function
        if self.ranking is not None:
            return ()
        fold = None if self.built_in else getattr(function, "function", None)
        return tuple(each for each in (fold, function.then) if each is not None)

    @property
    def keeps_timestamps(self) -> bool:
        """The last millisecond of a window is a time, unless there is one window of all time."""
        return type(self.config.assigner) is not GlobalWindows or self.config.ttl_ms is not None

    @property
    def fires_again(self) -> bool:
        """A window may emit several times, and a later result replaces the earlier ones."""
        late = self.config.has_lateness and self.config.allowed_lateness_ms > 0
        return not self.bounded and self.key is not None and (late or self.config.trigger is not None)

    def own_attributes(self) -> Mapping[str, bool]:
        """Over bounded input it emits at the end; with a key, later emissions replace earlier ones.

        A process function that makes its outputs must declare that. A fold need not: a later result covers
        all records of an earlier one, whatever the function is.
        """
        return {
            **Operator.own_attributes(self),
            "output_only_at_end": self.bounded,
            "output_idempotent": self.key is not None,
            **self._promises(),
        }

    def _promises(self) -> Mapping[str, bool]:
        """The attributes that its functions declare: it stores if any function does."""
        if not self.functions:
            return {}
        plain = [each.function if isinstance(each, PlainProcess) else each for each in self.functions]
        folds = self.config.function.then is None and not isinstance(self.config.function, WindowProcess)
        each = [promises(function, self.name, idempotent=folds) for function in plain]
        found = {"output_value_stored": any(promised["output_value_stored"] for promised in each)}
        found["output_idempotent"] = (self.key is not None or not folds) and each[-1]["output_idempotent"]
        return found

    def describe(self) -> str:
        by = ", ".join(self.by) or "nothing"
        of_time = f" of {self.config.time} time" if self.config.assigner.bounded else ""
        what = f"{_describe_windows(self)}{of_time}, {_describe_function(self)} by {by}"
        return ", ".join([what, *_describe_declared(self.config)])

    def state_values(self) -> str:
        what = _describe_function(self) if self.ranking is None else str(self.ranking)
        return f"{_describe_windows(self)}, {what}"

    def stored_columns(self, used: Collection[str]) -> tuple[str, ...] | None:
        """Those of the records of a ranking, without the key."""
        if self.ranking is None:
            return None
        kept = {*used, *(name.lower() for name, _ in self.ranking.order)}
        return tuple(name for name in self.uses if name.lower() in kept and name not in self.by)

    def trigger_kind(self) -> str:
        return kind_of(self.config.effective_trigger)

    def reads(self, used: Collection[str]) -> Collection[str]:
        computed = (column for _, expression in self.computed for column in expression.columns)
        late = used if self.config.late == "side-output" else ()
        return {*StatefulOperator.reads(self, used), *computed, *late}

    def types(self) -> Mapping[str, str]:
        made = self.schema.types if self.schema is not None else {}
        if self.ranking is not None:
            made = {**self.passed_types(self.values), self.ranking.rank.lower(): "INT"}
        return {**made, **self.passed_types(self.by)}

    def lineage(self, known: Mapping[Operator, Origins]) -> Origins:
        inputs = self.origins(known)
        times = self.timestamp.columns if self.timestamp is not None else ()
        return {
            **{name: trace(inputs, times) for name in WINDOW_COLUMNS if name in self.columns},
            **trace_each(inputs, self.by),
            **self._value_origins(inputs),
        }

    def _value_origins(self, inputs: Sequence[Origins]) -> Origins:
        """Those of `values`, some of which a running aggregate may name as windows name their columns."""
        if self.ranking is not None:
            order = {name for name, _ in self.ranking.order}
            rank = trace_to_all(inputs, [self.ranking.rank], order)
            return {**trace_each(inputs, self.values[:-1]), **rank}
        computed = {column for _, expression in self.computed for column in expression.columns}
        return trace_to_all(inputs, self.values, {*computed, *self.uses})

    def compiled(self) -> Decision:
        """``"native"``: Spark's own aggregate. ``"key-group"``: Python over whole columns, with state."""
        found = tuple(self._native_obstacles())
        if found:
            change = tuple(dict.fromkeys(each.change for each in found if each.change))
            return Decision("key-group", tuple(each.why for each in found), change)
        why = "every window is complete when its input has ended: Spark's own aggregate gives the same"
        return Decision("native", (why,))

    def _native_obstacles(self) -> Iterator[Obstacle]:
        """The reasons why Spark's window aggregate cannot compute it, and how to avoid them."""
        config = self.config
        if not self.bounded:
            if config.has_lateness:
                why = "Spark's watermark follows the fastest partition, and would drop records of slower ones"
            elif config.time == "processing":
                why = "Spark's own aggregate has no windows by processing time"
            else:
                why = "Spark's own aggregate has no windows without end"
            yield Obstacle(why)
            return
        if type(config.assigner) not in _OF_FIXED_LENGTH:
            yield Obstacle("its windows are not of a fixed length")
        if self.ranking is not None:
            yield Obstacle("it ranks the records of a window", "use aggregates that are built in")
        elif not self.built_in or config.function.then is not None:
            yield Obstacle("it has a Python function", "use aggregates that are built in")
        if config.trigger is not None:
            yield Obstacle("it has a trigger", "leave the trigger out")
        if config.evictor is not None:
            yield Obstacle("it has an evictor", "leave the evictor out")
        ordered = [name for name, each in self.built_in if each.function in _IN_ORDER]
        if ordered and self.timestamp is not None:
            yield Obstacle(
                f"{', '.join(ordered)} go by the order of time, which Spark's aggregate does not keep"
            )

    def own_emission(self) -> Decision:
        if self.bounded:
            return Decision("at the end of input", ("its windows are complete when their input has ended",))
        if self.config.trigger is not None:
            return Decision("when its trigger says so", ("it has a trigger",))
        of_time = "the watermark reaches" if self.config.time == "event" else "processing time reaches"
        return Decision("when a window is complete", (f"{of_time} the last millisecond of the window",))

    def unbounded_state(self) -> Decision | None:
        if self.bounded:
            return None
        if self.config.has_lateness and self.config.allowed_lateness_ms == MAX_TIMESTAMP_MS:
            why = "its windows are kept for late records for ever"
            return Decision("unbounded", (why,), ("declare a finite allowed_lateness=",))
        if self.config.ttl_ms is not None:
            return self._unbounded_values()
        if self.config.assigner.bounded:
            return self._unbounded_key_state()
        keeps_records = self.config.evictor is not None or isinstance(self.config.function, WindowProcess)
        if not (self.by or keeps_records):
            return None
        kept = "records" if keeps_records else "each key"
        why = f"its window never ends, and keeps {kept} until a trigger purges it"
        return Decision("unbounded", (why,), ("declare ttl=, or use windows that end",))

    def _unbounded_key_state(self) -> Decision | None:
        if not self.by or self.config.function.then is None or self.ranking is not None:
            return None
        why = "what its function keeps of a key stays when the windows of the key end"
        change = "remove it in the function's clear"
        return Decision("unbounded, if its function keeps key_state", (why,), (change,))

    def _unbounded_values(self) -> Decision | None:
        """A time to live bounds the number of keys, not what is kept of one that goes on."""
        kept, config = self.kept_values, self.config
        if not kept or config.evictor is not None or isinstance(config.trigger, Purging):
            return None
        pause = show_ms(config.ttl_ms or 0)
        why = f"a key without a pause of {pause} does not expire, and {kept} keeps each of its values"
        return Decision("unbounded, if a key has no such pause", (why,), ("use windows that end",))

    @property
    def kept_values(self) -> str:
        """Those of its built-in aggregates, as text, that keep each value of a window."""
        sql = dict(self.sql)
        return ", ".join(
            sql.get(name, name)
            for name, each in self.built_in
            if each.distinct or each.function == "collect_list"
        )

    def late_records(self) -> Decision | None:
        if self.bounded or not self.config.has_lateness:
            return None
        return late_outcome(self.config.late, "side output")

    @property
    def needs_timestamps(self) -> bool:
        return self.config.has_lateness

    @property
    def emits_without_input(self) -> bool:
        return self.config.time == "processing" or self.config.trigger is not None

    @property
    def calls_user_functions(self) -> bool:
        # Triggers and evictors may be the user's too.
        return bool(self.functions) or self.config.trigger is not None or self.config.evictor is not None

    @property
    def buffer_key(self) -> tuple[str, ...]:
        return self.by if self.updating else (*self.by, *WINDOW_COLUMNS[:2])

    def flush_obstacle(self) -> Obstacle | None:
        if self.ranking is not None:
            return Obstacle("a window emits its ranks once")
        if self.key is None and not self.attributes().output_idempotent:
            return Obstacle(
                "an emission of its windows does not replace the earlier ones (output_idempotent)",
                "use windows without a purging trigger, an evictor or a process function",
            )
        return self.replacement_obstacle()

    def side_outputs_by_name(self) -> Mapping[str, tuple[tuple[str, ...], Schema | None]]:
        late = self.config.late == "side-output"
        return {LATE_OUTPUT: (self.inputs[0].columns, None)} if late else {}


def _describe_windows(node: Window) -> str:
    assigner = node.config.assigner
    match assigner if type(assigner) in _ASSIGNERS else None:
        case TumblingWindows(size_ms=size_ms, offset_ms=offset_ms):
            return f"tumbling windows of {show_ms(size_ms)}{_offset(offset_ms)}"
        case SlidingWindows(size_ms=size_ms, slide_ms=slide_ms, offset_ms=offset_ms):
            return f"windows of {show_ms(size_ms)} every {show_ms(slide_ms)}{_offset(offset_ms)}"
        case SessionWindows(gap_ms=gap_ms):
            return f"sessions with a gap of {show_ms(gap_ms)}"
        case DynamicSessionWindows(gap=GapColumn()):
            return f"sessions with a gap of {dict(node.computed)[GAP_COLUMN].text} ms"
        case DynamicSessionWindows(gap=gap):
            return f"sessions with a gap by {name_of(gap)}"
        case EndOfStreamWindows():
            return "one window up to the end of input"
        case GlobalWindows():
            return "one window without end"
        case _:
            return f"windows of {_shown(assigner)}"


def _describe_function(node: Window) -> str:
    function = node.config.function
    if (ranking := node.ranking) is not None:
        return f"{ranking} as {ranking.rank}"
    then = function.then.function if isinstance(function.then, PlainProcess) else function.then
    named = "" if then is None else name_of(then)
    if isinstance(function, WindowProcess):
        return f"process {named}"
    aggregates = ", ".join(f"{text} as {name}" for name, text in node.sql)
    if aggregates:
        what = f"aggregate {aggregates}"
    else:
        verb = "reduce" if isinstance(function, WindowReduce) else "aggregate with"
        what = f"{verb} {name_of(function.function)}"
    return f"{what}, then {named}" if named else what


def _describe_declared(config: WindowConfig) -> list[str]:
    """The trigger, the evictor and what becomes of late records, where they were declared."""
    named = (("trigger", config.trigger), ("evictor", config.evictor))
    found = [f"{what} {_shown(each)}" for what, each in named if each is not None]
    if config.allowed_lateness_ms:
        endless = config.allowed_lateness_ms == MAX_TIMESTAMP_MS
        found.append("late for ever" if endless else f"late by up to {show_ms(config.allowed_lateness_ms)}")
    if config.late == "side-output":
        found.append("later records to the side output")
    if config.ttl_ms is not None:
        found.append(f"each key kept {show_ms(config.ttl_ms)} after its last record")
    return found


def _shown(value: object) -> str:
    """A trigger or an evictor with what it was given; the same in every process."""
    if is_dataclass(value):
        inside = (_shown(getattr(value, each.name)) for each in fields(value))
        return f"{type(value).__name__}({', '.join(inside)})"
    return repr(value) if isinstance(value, (bool, int, float, str)) else name_of(value)


def _offset(offset_ms: int) -> str:
    return f" from {'-' * (offset_ms < 0)}{show_ms(abs(offset_ms))}" if offset_ms else ""
