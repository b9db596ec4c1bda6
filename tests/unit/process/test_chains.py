"""Functions downstream of a keyed process run in the call of its key groups, on the same records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from flowcore import Flow, KafkaTopic, KeyedProcessFunction, OperatorAttributesBuilder, Parquet, Stream
from flowcore.api.operators import Operator
from flowcore.chains import ChainSpec, DownstreamChain, Receiver, Step
from flowcore.elements import RecordAttributes
from flowcore.errors import FunctionError
from flowcore.keyed.dead_letters import DEAD_LETTERS
from flowcore.keyed.operator import StepOutputs
from flowcore.keyed.state_cache import StateCache
from flowcore.planner import plan_flow
from flowcore.planner.model import Chain
from flowcore.planner.plan import Plan
from flowcore.planner.views.details import collect_details
from flowcore.process.keyed import KeyedProcesses
from flowcore.settings import Settings
from flowcore.testing.memory_store import MemoryStore
from tests.unit.keyed.test_dead_letters import ROWS as INPUT
from tests.unit.keyed.test_dead_letters import Row, dead_letters, packed, processes, row, runtime

ROW = "a INT, b STRING"
NUMBER = pa.schema([pa.field("n", pa.int64())])


class _Same(KeyedProcessFunction):
    def process(self, record: Mapping[str, Any], _context: Any) -> Iterator[Mapping[str, Any]]:
        yield record


class _Careless(_Same):
    is_output_value_stored = False


class _Batched(KeyedProcessFunction):
    def process_batch(self, _keys: Any, batch: pa.RecordBatch, _context: Any) -> list[pa.RecordBatch]:
        return [batch]


def _same(record: Any) -> Any:
    return record


def _processed(function: KeyedProcessFunction | None = None, **settings: Any) -> Stream:
    read = Flow("f").read("bids", KafkaTopic("bids", schema=ROW))
    return read.process(function or _Same(), by="a", schema=ROW, name="process", **settings)


def _plan(*ends: Stream, **settings: Any) -> Plan:
    for end in ends:
        end.write(f"to_{end.operator.name}", KafkaTopic(end.operator.name))
    return plan_flow(ends[0].graph, settings=Settings.of(settings, environment={}))


def _chains(plan: Plan) -> tuple[Chain, ...]:
    assert plan.live is not None
    return tuple(chain for query in plan.live.queries for chain in query.chains)


def test_what_follows_a_process_is_in_its_chain() -> None:
    """The chain ends at a second reader; side outputs do not count, and upstream functions are separate."""
    read = Flow("f").read("bids", KafkaTopic("bids", schema=ROW)).map(_same, schema=ROW, name="before")
    process = read.process(_Same(), by="a", schema=ROW, name="process", side_outputs={"odd": ROW})
    one = process.map(_same, schema=ROW, name="one").filter(bool, name="two")
    three = process.flat_map(_same, schema=ROW, name="three")

    plan = _plan(one, three.select("a", name="native"), process.side_output("odd"))

    assert [chain.name for chain in _chains(plan)] == ["before", "process > {one > two, three}"]
    text = plan.explain()
    assert (
        "python chain process > {one > two, three}: one call of a worker, that of process's key groups"
        in text
    )
    assert "before -> process: not in one call, because records are shuffled by key before" in text


@pytest.mark.parametrize(
    ("function", "keeps", "setting", "copy"),
    [
        (_Same(), False, False, "deep"),
        (_Careless(), False, False, "reuse"),
        (_Careless(), True, False, "shallow"),
        (_Same(), True, True, "reuse"),
        (_Batched(), True, False, "reuse"),
    ],
)
def test_copies_downstream_of_a_process_follow_the_table(
    function: Any, keeps: bool, setting: bool, copy: str
) -> None:
    """A process may reuse its outputs unless it declares otherwise; batches are immutable."""
    attributes = OperatorAttributesBuilder().set_input_record_stored(keeps)
    one = _processed(function).map(_same, schema=ROW, name="one", attributes=attributes)

    (chain,) = _chains(_plan(one, **{"pipeline.object-reuse": setting}))

    assert [each.value for each in chain.copies.values()] == [copy]


def test_process_with_several_readers_starts_no_chain() -> None:
    """A process with a buffer downstream starts none either."""
    process = _processed()
    plan = _plan(process.map(_same, schema=ROW, name="one"), process.select("a", name="native"))
    assert [chain.name for chain in _chains(plan)] == ["one"]

    latest = OperatorAttributesBuilder().set_output_idempotent(True)
    flushed = _processed(attributes=latest, flush=timedelta(seconds=1)).map(_same, schema=ROW, name="one")
    assert [chain.name for chain in _chains(_plan(flushed))] == ["one"]


def test_a_bounded_process_begins_a_chain_too() -> None:
    """A bounded process is chained as a live one is."""
    flow = Flow("f")
    process = flow.read("in", Parquet("in", schema=ROW)).process(_Same(), by="a", schema=ROW, name="process")
    process.map(_same, schema=ROW, name="one").write("out", Parquet("out"))
    (stage,) = plan_flow(flow).bounded
    assert [chain.name for chain in stage.chains] == ["process > one"]


def test_failure_downstream_of_a_process_is_a_dead_letter() -> None:
    """This excludes functions of batches; downstream of native operators it has another content."""
    process = _processed()
    one = process.map(_same, schema=ROW, name="one")
    two = process.map_batches(_same, schema=ROW, name="two").map(_same, schema=ROW, name="three")
    plan = _plan(one, two)
    found = {
        each.node.name: each.outcomes["failure"]
        for part in collect_details(plan)
        for each in part.operators
        if "failure" in each.outcomes
    }
    assert {name: each.value for name, each in found.items()} == {
        "process": "dead letter", "one": "dead letter", "two": "stops the query", "three": "stops the query",
    }  # fmt: skip
    assert found["one"].reasons == ("what process had emitted for it goes to bids.dead-letter",)

    native = _processed().select("a", "b", name="native").map(_same, schema=ROW, name="one")
    (query,) = (query for query in _live(_plan(native)) if query.chains)
    decided = query.failures[_operator(native)]
    assert decided.reasons == ("process made its record, so what one received goes to bids.dead-letter",)


def _live(plan: Plan) -> Any:
    assert plan.live is not None
    return plan.live.queries


def _operator(stream: Stream) -> Operator:
    return stream.operator


class Numbers(KeyedProcessFunction):
    """Emits an output for each record, which it remembers, and one for a timer."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def process(self, record: Mapping[str, Any], context: Any) -> Iterator[Mapping[str, Any]]:
        context.register_event_timer(7)
        for number in range(2):
            self.made.append({"n": record["number"] + number})
            yield self.made[-1]

    def on_timer(self, time_ms: int, _context: Any) -> list[Mapping[str, Any]]:
        return [{"n": time_ms}]


def chained(function: KeyedProcessFunction, *receivers: Receiver, **changed: Any) -> KeyedProcesses:
    head = Step(name="watch", kind="process", function=_same, schema=NUMBER, receivers=receivers)
    downstream = DownstreamChain(spec=ChainSpec(NUMBER, head), isolate_failures=True)
    return replace(processes(function), results=NUMBER, side_outputs={}, downstream=downstream, **changed)


def step(kind: Any, function: Any, outlet: int | None = 0, name: str = "next", **more: Any) -> Step:
    return Step(name=name, kind=kind, function=function, schema=NUMBER, outlet=outlet, **more)


def emitted(operator: KeyedProcesses, *rows: Row) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    stepped = runtime(operator).step(0, packed(rows), 0, MemoryStore(), StateCache())
    for output, batch in stepped.outputs.batches:
        found.setdefault(output, []).extend(batch.to_pylist())
    return found


ROWS = row("a", 1, "", 10, 5), row("b", 30, "", 20, 6)


def test_outputs_have_their_origin() -> None:
    """The origin is the record or timer, and the ordinal at each step of the chain."""
    three = Receiver(step("flat_map", lambda r: [r, {"n": r["n"] * 100}] if r["n"] % 2 else [r]), "deep")
    found = emitted(chained(Numbers(), three), *ROWS)

    names = ("n", "offset", "@timestamp_ms", "@ordinal", "@nth")
    timer = '{"user": "a"}:event:7'
    assert [tuple(each[name] for name in names) for each in found["chain 0"] if each["@timer"] is None] == [
        (10, 5, 1, 0, 0), (11, 5, 1, 1, 0), (1100, 5, 1, 1, 1), (20, 6, 30, 0, 0), (21, 6, 30, 1, 0),
        (2100, 6, 30, 1, 1),
    ]  # fmt: skip
    of_timers = [(each["n"], each["@nth"]) for each in found["chain 0"] if each["@timer"] == timer]
    assert of_timers == [(7, 0), (700, 1)]


def test_long_key_is_a_digest_in_the_ids_of_a_timer() -> None:
    """A message's headers count for its size: an id of any length would be refused by the broker."""
    rows = row("a" * 1000, 1, "", 10, 5), row("b", 30, "", 20, 6)
    found = emitted(chained(Numbers(), Receiver(step("map", _same))), *rows)

    timers = {each["@timer"] for each in found["chain 0"] if each["@timer"] is not None}
    digest = hashlib.sha256(b'{"user": "%s"}' % (b"a" * 1000)).hexdigest()
    assert timers == {f"{digest}:event:7", '{"user": "b"}:event:7'}


@pytest.mark.parametrize(("copy", "shared"), [("reuse", True), ("shallow", False), ("deep", False)])
def test_a_process_hands_on_the_very_object_or_a_copy(copy: Any, shared: bool) -> None:
    """The object is not converted to columns in between."""
    seen: list[Any] = []
    function = Numbers()
    keep = Receiver(step("map", lambda r: seen.append(r) or r), copy)
    group = chained(function, keep).open()
    group.rows(
        pa.record_batch([list(column) for column in zip(*ROWS, strict=True)], schema=INPUT),
        StepOutputs(),
    )
    assert [one is other for one, other in zip(seen, function.made, strict=True)] == [shared] * 4
    assert seen == function.made


def test_process_feeds_several_functions() -> None:
    """Each outlet is separate; outputs of a function of batches have no single record as origin."""
    batched = step("map_batches", lambda batch: batch.slice(1), outlet=1, name="batched")
    kept = step("filter", lambda r: r["n"] > 15, outlet=0)
    found = emitted(chained(Numbers(), Receiver(kept), Receiver(batched)), *ROWS)
    assert [each["n"] for each in found["chain 0"]] == [20, 21]
    assert {
        (each["n"], each["offset"], each["@timestamp_ms"], each["@timer"]) for each in found["chain 1"]
    } == {(number, None, None, None) for number in (11, 20, 21, 7)}


def _picky(record: dict[str, Any]) -> dict[str, Any]:
    if record["n"] in {11, 7}:
        raise ValueError(record["n"])
    return record if record["n"] != 20 else {"m": 1}


def test_a_failing_function_downstream_of_a_process_makes_a_dead_letter() -> None:
    """It has the input, its coordinates and the failing operator; other records are processed."""
    found = emitted(chained(Numbers(), Receiver(step("map", _picky))), *ROWS)

    assert [each["n"] for each in found["chain 0"]] == [10, 21]
    of_records = {each["offset"]: each for each in found[DEAD_LETTERS] if each["offset"]}
    contents = [each["@content"] for each in found[DEAD_LETTERS]]
    assert contents == ['{"n": 11}', '{"n": 20}', '{"n": 7}', '{"n": 7}']  # each user has a timer
    assert {each["@operator"] for each in found[DEAD_LETTERS]} == {"next"}
    assert "operator 'next': its function raised ValueError: 11" in of_records[5]["@reason"]
    assert "for the record clicks[0]@5" in of_records[5]["@reason"]
    assert "emits a record without the column 'n'" in of_records[6]["@reason"]


def test_failing_function_downstream_of_a_process_stops_with_on_error_fail() -> None:
    """This holds for a record and for a timer."""
    strict = dead_letters((True, False))
    operator = chained(Numbers(), Receiver(step("map", _picky)), dead_letters=strict)
    with pytest.raises(FunctionError, match="operator 'next': its function raised ValueError: 11"):
        emitted(operator, ROWS[0])
    with pytest.raises(FunctionError, match="operator 'next': its function raised ValueError: 7"):
        emitted(operator, row("a", 1, "", 50, source=0), row("b", 30, "", 50, source=0))


def test_functions_downstream_of_a_process_are_opened_and_closed_with_it() -> None:
    """They are opened once per task."""
    calls: list[str] = []

    class Noted:
        def open(self) -> None:
            calls.append("open")

        def __call__(self, record: Any) -> Any:
            return record

        def close(self) -> None:
            calls.append("close")

    run, store = runtime(chained(Numbers(), Receiver(step("map", Noted())))), MemoryStore()
    run.step(0, packed(ROWS), 0, store, StateCache())
    run.step(0, packed(ROWS), 0, store, StateCache())
    run.operator.close()
    run.operator.close()
    assert calls == ["open", "close"]


class Labels:
    """Adds a thousand to the records of backlog."""

    def __init__(self) -> None:
        self.added = 0

    def process_record_attributes(self, attributes: RecordAttributes) -> None:
        self.added = 1000 * attributes.backlog

    def __call__(self, record: Any) -> Any:
        return {"n": record["n"] + self.added}


def test_functions_learn_of_the_attributes_of_each_key_group() -> None:
    """The functions of a worker are shared by its key groups; a status survives a restart."""
    operator = chained(Numbers(), Receiver(step("map", Labels())))

    def numbers(group: Any) -> list[int]:
        out = StepOutputs()
        group.rows(pa.record_batch([list(column) for column in zip(*ROWS, strict=True)], schema=INPUT), out)
        return [row["n"] for _, batch in out.batches for row in batch.to_pylist()]

    live, backlog = operator.open(), operator.open()
    backlog.attributes(RecordAttributes(backlog=True), StepOutputs())
    assert numbers(live) == [10, 11, 20, 21]
    assert numbers(backlog) == [1010, 1011, 1020, 1021]
    assert numbers(live) == [10, 11, 20, 21]
    restored = operator.open()
    restored.restore(backlog.header(), iter(()))
    assert numbers(restored) == [1010, 1011, 1020, 1021]
    restored.attributes(RecordAttributes(backlog=False), StepOutputs())
    assert numbers(restored) == [10, 11, 20, 21]
