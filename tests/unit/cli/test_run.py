"""`flowcore run` says what a slice leaves open."""

from datetime import timedelta

from flowcore import Flow, KafkaTopic, KeyedProcessFunction, Stream, Tumbling, monotonous
from flowcore.cli.run import describe_open
from flowcore.metrics.progress import QueryProgress
from flowcore.planner import plan_flow


def _clicks(flow: Flow) -> Stream:
    return flow.read("clicks", KafkaTopic("clicks", "user STRING, n INT", watermark=monotonous()))


def _progress(watermark_ms: int | None) -> list[QueryProgress]:
    return [QueryProgress(name="clicks-batches", mode="slice", active=False, watermark_ms=watermark_ms)]


def test_slice_names_the_operators_that_wait_for_event_time() -> None:
    """What they keep comes with a later run."""
    flow = Flow("site")
    clicks = _clicks(flow)
    clicks.window(Tumbling(10), by="user", name="sums").aggregate(n="sum(n)").write("out", KafkaTopic("sums"))
    silent = clicks.process(KeyedProcessFunction(), by="user", schema="user STRING", name="silent")
    silent.write("silence", KafkaTopic("silent"))
    plan = plan_flow(flow, "slice")

    (reached,) = describe_open(plan, _progress(1_700_000_098_899))
    (unknown,) = describe_open(plan, _progress(None))

    assert reached.startswith(
        "query clicks-batches: event time is at 2023-11-14 22:14:58 UTC. What sums and silent would emit"
    )
    assert "`flowcore state site` shows it" in reached
    assert "event time has not begun" in unknown


def test_only_slices_with_such_operators_leave_something_open() -> None:
    """A live run goes on, and a deduplication has emitted what it lets through."""
    open_, closed = Flow("open"), Flow("closed")
    _clicks(open_).window(Tumbling(10)).aggregate(n="sum(n)").write("out", KafkaTopic("sums"))
    _clicks(closed).deduplicate(by="user", within=timedelta(hours=1)).write("out", KafkaTopic("users"))

    assert [*describe_open(plan_flow(open_, "micro-batch"), _progress(1))] == []
    assert [*describe_open(plan_flow(closed, "slice"), _progress(1))] == []
