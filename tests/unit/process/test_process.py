"""Keyed process functions: states, time to live, timers, side outputs and restarts."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.errors import ElementError, FunctionError, NoTimestampError
from flowcore.process import KeyedProcessFunction, ProcessConfig, ProcessOperator, ProcessState
from flowcore.process.codec import keys_of
from flowcore.process.function import Outputs, ProcessContext, RecordMapping
from flowcore.process.opening import OpenContext
from flowcore.testing.harness import ProcessHarness
from flowcore.testing.window_functions import Sum

SECOND = timedelta(seconds=1)


class Scripted(KeyedProcessFunction):
    """Runs each record, which is a function of this object and the context."""

    def __init__(self, ttl: timedelta | None = None, ttl_update: Any = "write") -> None:
        self.how = {"ttl": ttl, "ttl_update": ttl_update}

    def open(self, context: OpenContext) -> None:
        self.opening = context
        self.value = context.value_state("value", "INT", **self.how)
        self.list = context.list_state("list", "STRING", **self.how)
        self.map = context.map_state("map", "STRING", "INT", **self.how)
        self.numbers = context.map_state("numbers", "DOUBLE", "INT", **self.how)
        self.sum = context.reducing_state("sum", "BIGINT", lambda kept, new: kept + new, **self.how)
        self.total = context.aggregating_state("total", Sum(), **self.how)

    def process(self, record: Any, context: ProcessContext) -> Outputs:
        found = record["do"](self, context)
        return () if found is None else [{"found": found}]

    def on_timer(self, time_ms: int, context: ProcessContext) -> Outputs:
        yield {"time": time_ms, "at": (context.watermark_ms, context.processing_time_ms)}


Step = Callable[[Scripted, ProcessContext], Any]


def _do(harness: ProcessHarness, key: Any, step: Step, timestamp_ms: int | None = None) -> Any:
    """Content of a step's output."""
    results = harness.feed((key, {"do": step}, timestamp_ms)).results
    return results[0].value["found"] if results else None


def _all(function: Scripted, _: ProcessContext) -> Any:
    """Content of all states."""
    return (
        function.value.get(), function.list.get(), dict(function.map), function.sum.get(),
        function.total.get(),
    )  # fmt: skip


def _fill(function: Scripted, _: ProcessContext) -> None:
    function.value.set(1)
    function.list.add("a")
    function.map["x"] = 1
    function.sum.add(1)
    function.total.add(1)


def _clear(function: Scripted, _: ProcessContext) -> None:
    for state in (function.value, function.list, function.map, function.sum, function.total):
        state.clear()


FULL = (1, ["a"], {"x": 1}, 1, 1)
EMPTY = (None, [], {}, None, None)


def test_states_belong_to_the_key_of_the_record() -> None:
    harness = ProcessHarness(Scripted())
    _do(harness, "a", _fill)

    assert (_do(harness, "a", _all), _do(harness, "b", _all)) == (FULL, EMPTY)


def test_states_survive_a_restart() -> None:
    harness = ProcessHarness(Scripted(ttl=SECOND))
    _do(harness, ("a", 1), _fill)
    harness.restart()

    assert _do(harness, ("a", 1), _all) == FULL


def test_states_keep_what_they_fold_and_not_the_parts() -> None:
    harness = ProcessHarness(Scripted())
    for number in (1, 2, 3):
        _do(harness, "a", lambda f, _, n=number: (f.sum.add(n), f.total.add(n * 10)))

    assert _do(harness, "a", lambda f, _: (f.sum.get(), f.total.get())) == (6, 60)
    assert [entry[1] for entry in harness.snapshot()["keys"][0]["states"]["sum"]] == [6]


def test_list_state_keeps_the_order_of_adding_over_removal_and_restart() -> None:
    harness = ProcessHarness(Scripted())
    _do(harness, "a", lambda f, _: f.list.set(["c", "a", "b"]))
    harness.restart()
    _do(harness, "a", lambda f, _: f.list.add("a"))

    assert _do(harness, "a", lambda f, _: (list(f.list), len(f.list))) == (["c", "a", "b", "a"], 4)


def test_map_state_is_a_mapping() -> None:
    harness = ProcessHarness(Scripted())
    _do(harness, "a", lambda f, _: f.map.update({"x": 1, "y": 2, "z": 3}))
    _do(harness, "a", lambda f, _: f.map.pop("y"))

    assert _do(harness, "a", lambda f, _: ("y" in f.map, len(f.map), list(f.map.items()))) == (
        False, 2, [("x", 1), ("z", 3)],
    )  # fmt: skip
    with pytest.raises(KeyError):
        _do(harness, "a", lambda f, _: f.map["y"])


def test_map_state_has_one_entry_for_not_a_number() -> None:
    """Each record has an object of its own, and there is a single one after a restart."""
    harness = ProcessHarness(Scripted())

    def add(function: Scripted, _: ProcessContext) -> Any:
        nan = float("nan")
        function.numbers[nan] = function.numbers.get(nan, 0) + 1
        return len(function.numbers), function.numbers[float("nan")], nan in function.numbers

    assert [_do(harness, "a", add) for _ in range(2)] == [(1, 1, True), (1, 2, True)]
    harness.restart()
    assert _do(harness, "a", add) == (1, 3, True)


@pytest.mark.parametrize(
    "forget",
    [
        _clear,
        lambda f, c: (_clear(f, c), f.value.set(None)),
        lambda f, _: (f.map.pop("x"), f.list.set([]), f.value.clear(), f.sum.clear(), f.total.clear()),
    ],
    ids=["clear", "set to None", "removed one by one"],
)
def test_key_without_state_and_timers_is_forgotten(forget: Step) -> None:
    harness = ProcessHarness(Scripted(ttl=SECOND))
    _do(harness, "a", _fill)
    _do(harness, "a", forget)

    assert harness.snapshot()["keys"] == []
    assert not len(harness._state.expiries)


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_entry_expires_at_its_end_and_not_before(restarted: bool) -> None:
    harness = ProcessHarness(Scripted(ttl=SECOND))
    harness.move_clock(500)
    _do(harness, "a", _fill)
    if restarted:
        harness.restart()
    harness.move_clock(1499)
    before = _do(harness, "a", _all)
    harness.move_clock(1500)

    assert (before, _do(harness, "a", _all)) == (FULL, EMPTY)
    assert harness.snapshot()["keys"] == []


@pytest.mark.parametrize(
    ("ttl_update", "left"), [("write", EMPTY), ("read", FULL)], ids=["from writing", "from reading"]
)
def test_reading_lets_an_entry_live_on_only_if_asked_for(ttl_update: str, left: Any) -> None:
    harness = ProcessHarness(Scripted(ttl=SECOND, ttl_update=ttl_update))
    _do(harness, "a", _fill)
    harness.move_clock(600)
    _do(harness, "a", _all)
    harness.move_clock(1300)

    assert _do(harness, "a", _all) == left


@pytest.mark.parametrize(
    "look_up",
    [lambda f, _: "x" in f.map, lambda f, _: f.map.get("x") is not None, lambda f, _: "x" in f.map.keys()],  # noqa: SIM118
    ids=["in", "get", "in keys"],
)
@pytest.mark.parametrize("ttl_update", ["write", "read"])
def test_looking_for_a_key_reads_its_entry(ttl_update: str, look_up: Step) -> None:
    """As in Flink, where a lookup of a key renews its time to live."""
    harness = ProcessHarness(Scripted(ttl=SECOND, ttl_update=ttl_update))
    assert _do(harness, "a", look_up) is False
    _do(harness, "a", _fill)
    found = []
    for now_ms in (600, 1200, 1800, 2800):
        harness.move_clock(now_ms)
        found.append(_do(harness, "a", look_up))

    assert found == ([True, False, False, False] if ttl_update == "write" else [True, True, True, False])


def test_entries_of_lists_and_maps_expire_one_by_one() -> None:
    """An entry that is written again gets a new time to live."""
    harness = ProcessHarness(Scripted(ttl=SECOND))
    _do(harness, "a", lambda f, _: (f.list.add("first"), f.map.update(x=1, y=2)))
    harness.move_clock(400)
    _do(harness, "a", lambda f, _: (f.list.add("second"), f.map.update(x=3)))
    harness.move_clock(1000)
    assert _do(harness, "a", lambda f, _: (f.list.get(), dict(f.map))) == (["second"], {"x": 3})
    harness.move_clock(1400)

    assert _do(harness, "a", _all) == EMPTY


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_list_appends_after_its_remaining_entries(restarted: bool) -> None:
    harness = ProcessHarness(Scripted(ttl=SECOND))
    _do(harness, "a", lambda f, _: f.list.add("first"))
    harness.move_clock(500)
    _do(harness, "a", lambda f, _: f.list.add("second"))
    if restarted:
        harness.restart()
    harness.move_clock(1000)
    _do(harness, "a", lambda f, _: f.list.add("third"))

    assert _do(harness, "a", lambda f, _: f.list.get()) == ["second", "third"]


def test_unexpired_entries_cost_one_check_and_not_one_each() -> None:
    harness = ProcessHarness(Scripted(ttl=SECOND))
    for now_ms in range(100):
        harness.move_clock(now_ms)
        _do(harness, "a", lambda f, _, n=now_ms: (f.value.set(n), f.map.update({str(n): n})))

    assert len(harness._state.expiries) == 2


def test_key_that_is_not_in_a_map_cannot_be_removed() -> None:
    harness = ProcessHarness(Scripted())
    _do(harness, "a", _fill)
    with pytest.raises(KeyError):
        _do(harness, "a", lambda f, _: f.map.__delitem__("y"))

    assert _do(harness, "a", _all) == FULL


def test_timers_are_due_at_their_time_by_the_watermark_or_by_the_clock() -> None:
    harness = ProcessHarness(Scripted())
    _do(harness, "a", lambda _, c: (c.register_event_timer(10), c.register_processing_timer(20)))
    seen = [harness.watermark(9), harness.watermark(10), harness.move_clock(19), harness.move_clock(20)]

    assert [[(r.key, r.value["time"], r.timestamp_ms) for r in step.results] for step in seen] == [
        [], [("a", 10, 10)], [], [("a", 20, 20)],
    ]  # fmt: skip


def test_timer_is_asked_for_once_however_often() -> None:
    harness = ProcessHarness(Scripted())
    for _ in range(3):
        _do(harness, "a", lambda _, c: c.register_event_timer(10))
    harness.restart()
    _do(harness, "a", lambda _, c: c.register_event_timer(10))

    assert len(harness.watermark(10).results) == 1
    assert harness.snapshot()["keys"] == []


def test_timer_that_is_cancelled_is_not_due_unless_asked_for_again() -> None:
    harness = ProcessHarness(Scripted())
    _do(harness, "a", lambda _, c: (c.register_event_timer(10), c.delete_event_timer(10)))
    assert harness.watermark(10).results == []
    _do(harness, "a", lambda _, c: (c.register_processing_timer(5), c.delete_processing_timer(5)))
    _do(harness, "a", lambda _, c: c.register_processing_timer(5))

    assert len(harness.move_clock(5).results) == 1


def test_timer_in_the_past_fires_at_the_next_watermark() -> None:
    harness = ProcessHarness(Scripted())
    harness.watermark(100)
    _do(harness, "a", lambda _, c: c.register_event_timer(50))

    assert harness.watermark(100).results == []
    assert [result.value["time"] for result in harness.watermark(101).results] == [50]


def test_timers_come_by_time_over_all_keys() -> None:
    harness = ProcessHarness(Scripted())
    for key, time_ms in (("a", 30), ("b", 10), ("a", 20)):
        _do(harness, key, lambda _, c, t=time_ms: c.register_event_timer(t))

    assert [(r.key, r.timestamp_ms) for r in harness.end_of_input().results] == [
        ("b", 10), ("a", 20), ("a", 30),
    ]  # fmt: skip


class Ticking(KeyedProcessFunction):
    """Registers the next timer at each timer, until the end of input."""

    def process(self, record: RecordMapping, context: ProcessContext) -> Outputs:
        context.register_event_timer(context.timestamp_ms + record["every"])
        return ()

    def on_timer(self, time_ms: int, context: ProcessContext) -> Iterator[RecordMapping]:
        yield {"tick": time_ms}
        if not context.input_ended:
            context.register_event_timer(time_ms + 10)


def test_timer_can_ask_for_another_that_is_due_at_once() -> None:
    harness = ProcessHarness(Ticking())
    harness.feed(("a", {"every": 10}, 0))

    assert [result.timestamp_ms for result in harness.watermark(35).results] == [10, 20, 30]
    assert [result.timestamp_ms for result in harness.end_of_input().results] == [40]
    assert harness.watermark_ms == MAX_TIMESTAMP_MS


def test_clock_that_is_put_back_stands_still() -> None:
    operator, state = (
        ProcessOperator(ProcessConfig(function=Scripted())),
        ProcessState(processing_time_ms=100),
    )
    operator.advance_processing_time(state, 50)

    assert state.processing_time_ms == 100


class Histories(KeyedProcessFunction):
    """Emits only live records."""

    def process(self, record: Any, context: Any) -> Any:
        return [] if context.is_backlog else [record]


def test_function_can_read_whether_its_records_are_backlog() -> None:
    """The input is live at first; the status survives a restart."""
    harness = ProcessHarness(Histories())
    harness.feed(("a", {"n": 1}))
    harness.backlog(backlog=True)
    harness.feed(("a", {"n": 2}))
    harness.restart()
    harness.feed(("a", {"n": 3}))
    harness.backlog(backlog=False)
    harness.feed(("a", {"n": 4}))

    assert [result.value["n"] for result in harness.results] == [1, 4]


def test_side_outputs_have_key_timestamp_and_place_of_their_record() -> None:
    harness = ProcessHarness(Scripted(), side_outputs=["odd"])
    _do(harness, "a", lambda _, c: c.side_output("odd", {"x": 1}), 7)

    assert [tuple(result) for result in harness.side_outputs["odd"]] == [("a", {"x": 1}, 7, 0)]
    with pytest.raises(FunctionError, match=r"side output 'even' was not declared \(declared: odd\)"):
        _do(harness, "a", lambda _, c: c.side_output("even", {"x": 1}))


def test_results_say_which_record_they_were_made_of() -> None:
    harness = ProcessHarness(Scripted())
    rows = [("a", {"do": lambda _, c: c.timestamp_ms if c.key == "a" else None}, time) for time in (5, 6)]
    seen = harness.feed(rows[0], ("b", *rows[0][1:]), rows[1]).results

    assert [(r.key, r.value["found"], r.timestamp_ms, r.origin) for r in seen] == [
        ("a", 5, 5, 0), ("a", 6, 6, 2),
    ]  # fmt: skip


def test_timestamp_of_a_record_without_one_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(NoTimestampError, match="set a watermark strategy on its source"):
        _do(ProcessHarness(Scripted()), "a", lambda _, c: c.timestamp_ms)


@pytest.mark.parametrize("time_ms", [2**63, -(2**63) - 1, 1.5, None], ids=str)
def test_timer_at_no_time_is_refused(time_ms: Any) -> None:
    with pytest.raises(ElementError, match="not a time in 64-bit milliseconds"):
        _do(ProcessHarness(Scripted()), "a", lambda _, c: c.register_event_timer(time_ms))


def test_touched_keys_are_those_whose_state_may_have_changed() -> None:
    """A runtime writes only these keys."""
    operator, state = ProcessOperator(ProcessConfig(function=Scripted(ttl=SECOND))), ProcessState()
    from flowcore.process import KeyedRecord  # noqa: PLC0415

    operator.process(state, [KeyedRecord(key, {"do": _fill}) for key in ("a", "b", "c")])
    operator.process(state, [KeyedRecord("c", {"do": lambda _, c: c.register_event_timer(10)})])
    state.touched.clear()
    operator.advance_watermark(state, 10)
    timers = set(state.touched)
    state.touched.clear()
    operator.advance_processing_time(state, 1000)

    assert (timers, state.touched) == ({"c"}, {"a", "b", "c"})
    assert list(keys_of(state)) == []
