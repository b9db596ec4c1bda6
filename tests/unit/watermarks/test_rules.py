"""Watermarks by a user's generator, event time while all are idle, and partitions that run ahead."""

from datetime import timedelta
from typing import Any

import pyarrow.compute as pc
import pytest

from flowcore import Flow, KafkaTopic, bounded_out_of_orderness, monotonous, no_watermarks, periodic
from flowcore.elements import MAX_TIMESTAMP_MS, Watermark, WatermarkStatus
from flowcore.errors import ConfigurationError, FunctionError, PlanError
from flowcore.planner import plan_flow
from flowcore.watermarks import WatermarkStrategy
from flowcore.watermarks.generated import NewestTimes, call_generator
from flowcore.watermarks.merge import ChannelElements
from flowcore.watermarks.progress import WatermarkProgress, WatermarkSource

TEN = timedelta(milliseconds=10)
IDLE, ACTIVE = WatermarkStatus(idle=True), WatermarkStatus(idle=False)


def _progress(strategy: WatermarkStrategy, partitions: int = 2) -> WatermarkProgress:
    return WatermarkProgress({"in": WatermarkSource(strategy, tuple(map(str, range(partitions))))})


def test_periodic_watermark_is_the_highest_value_of_the_expression() -> None:
    progress = _progress(periodic("at - 4"), 1)
    for expression_ms in (None, 5, 3, None):
        progress.take("in", NewestTimes.of({"0": expression_ms}))

    assert progress.poll(0) == (Watermark(5),)


@pytest.mark.parametrize("returned", [1.5, "x", 2**63], ids=str)
def test_function_that_returns_no_time_is_an_error(returned: Any) -> None:
    with pytest.raises(FunctionError, match="which is not a time"):
        call_generator(lambda _: returned, [5])


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: periodic(" "), "has no expression: event time"),
        (lambda: periodic(5), "neither Spark SQL text nor a function"),  # type: ignore[arg-type]
        (lambda: monotonous().with_alignment(timedelta(0)), "no partition could ever be ahead"),
        (lambda: no_watermarks().with_alignment(TEN), "no partition could ever be ahead"),
        (lambda: monotonous().with_idleness(TEN, all_idle="stop"), "pass 'hold', or 'advance'"),  # type: ignore[arg-type]
        (lambda: WatermarkStrategy(monotonous().generator, all_idle="advance"), "it would have no effect"),
    ],
    ids=["no text", "a number", "no drift", "nothing to compare", "another rule", "never idle"],
)
def test_declarations_without_effect_are_refused(declare: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        declare()


def test_strategy_is_shown_with_all_that_was_declared() -> None:
    strategy = bounded_out_of_orderness(timedelta(seconds=4)).with_idleness(
        timedelta(minutes=1), all_idle="advance"
    )

    assert str(strategy.with_alignment(timedelta(hours=1))) == (
        "out of order by up to 4 s, idle after 1 min, with processing time while all are idle, "
        "aligned within 1 h"
    )
    assert [str(periodic("at - 5")), str(periodic(max))] == ["periodic, at - 5", "periodic by max"]


def _source(strategy: WatermarkStrategy, schema: str = "at TIMESTAMP, ms BIGINT") -> Any:
    flow = Flow("f")
    return flow, flow.read("in", KafkaTopic("in", schema=schema, event_time="at", watermark=strategy))


def test_expression_of_a_generator_is_checked() -> None:
    _source(periodic("ms - 4000"))
    with pytest.raises(PlanError, match="names the column 'seconds'"):
        _source(periodic("seconds"))
    with pytest.raises(PlanError, match="watermark 'at' is TIMESTAMP: not BIGINT"):
        _source(periodic("at"))


def test_function_as_generator_cannot_be_written_to_a_topic() -> None:
    """It can be used within the flow."""
    flow, stream = _source(periodic(lambda timestamps: pc.max(timestamps).as_py()))
    stream.write("plain", KafkaTopic("plain"))
    plan_flow(flow)
    stream.write("tagged", KafkaTopic("tagged", elements="tagged"))

    with pytest.raises(PlanError, match="those of in come from a Python function"):
        plan_flow(flow)


def _polls(strategy: WatermarkStrategy, *script: Any) -> list[Any]:
    progress, shown = _progress(strategy), []
    for step in script:
        if isinstance(step, int):
            shown.append(progress.poll(step))
        elif step == "end":
            ends = [(name, Watermark(MAX_TIMESTAMP_MS)) for name in ("0", "1")]
            progress.arrive("in", ChannelElements.from_elements(ends)[0])
            shown.append(progress.emit())
        else:
            progress.take("in", NewestTimes.of({str(step[0]): step[1]}))
    return shown


def test_event_time_goes_on_with_the_clock_while_all_are_idle() -> None:
    """Both are quiet from 1; from the poll at 12 on, the watermark advances with processing time."""
    strategy = monotonous().with_idleness(TEN, all_idle="advance")

    emitted = _polls(strategy, (0, 101), (1, 201), 0, 1, 12, 20, 20, (0, 105), 21, (0, 150), (1, 301), 22)

    assert emitted == [(Watermark(100),), (), (), (Watermark(108),), (), (), (Watermark(149),)]


def test_event_time_goes_on_from_where_it_was_after_the_clock_is_set_back() -> None:
    strategy = monotonous().with_idleness(TEN, all_idle="advance")

    emitted = _polls(strategy, (0, 101), (1, 101), 1_000, 1_001, 1_012, 1_090, 1_020, 1_023)

    assert emitted == [(Watermark(100),), (), (), (Watermark(178),), (), (Watermark(181),)]


def test_event_time_stands_still_while_all_are_idle_where_that_was_asked_for() -> None:
    emitted = _polls(monotonous().with_idleness(TEN), (0, 101), (1, 201), 0, 1, 12, 20)

    assert emitted == [(Watermark(100),), (), (IDLE,), ()]


def test_event_time_without_a_watermark_does_not_advance() -> None:
    """Processing time gives a duration but no start."""
    assert _polls(monotonous().with_idleness(TEN, all_idle="advance"), 0, 12, 10**12) == [(), (), ()]


def test_end_of_time_is_reached_by_the_end_of_the_input_alone() -> None:
    strategy = monotonous().with_idleness(TEN, all_idle="advance")
    emitted = _polls(strategy, (0, MAX_TIMESTAMP_MS), (1, MAX_TIMESTAMP_MS), 0, 1, 12, 10**6, "end")

    assert emitted == [(Watermark(MAX_TIMESTAMP_MS - 1),), (), (), (), (Watermark(MAX_TIMESTAMP_MS),)]


def test_idle_period_begins_anew_after_each_record() -> None:
    strategy = monotonous().with_idleness(TEN, all_idle="advance")
    emitted = _polls(strategy, (0, 101), (1, 101), 0, 1, 12, 15, (0, 200), 16, 17, 28, 30)

    assert emitted == [
        (Watermark(100),),
        (),
        (),
        (Watermark(103),),
        (Watermark(199),),
        (),
        (),
        (Watermark(201),),
    ]


def test_what_the_clock_has_added_survives_a_restart() -> None:
    strategy = monotonous().with_idleness(TEN, all_idle="advance")

    first, again = _progress(strategy, 1), _progress(strategy, 1)
    first.take("in", NewestTimes.of({"0": 101}))
    emitted = [first.poll(now_ms) for now_ms in (0, 1, 12, 20)]
    again.restore(first.snapshot())
    again.restart()

    assert emitted == [(Watermark(100),), (), (), (Watermark(108),)]
    assert again.poll(21) == (Watermark(108),)
