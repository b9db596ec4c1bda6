"""The watermark and status of a query's sinks are the combination over its key groups."""

from flowcore.elements import MAX_TIMESTAMP_MS, LatencyMarker, RecordAttributes, Watermark, WatermarkStatus
from flowcore.keyed.emitted import SOURCES, CombinedElements, Report, add_to_report

IDLE, ACTIVE = WatermarkStatus(idle=True), WatermarkStatus(idle=False)


def combined(**reports: Report) -> CombinedElements:
    """Two key groups, with a report of each."""
    found = CombinedElements(["w/a", "w/b"])
    for group, report in reports.items():
        found.take(f"w/{group}", report)
    return found


def test_watermark_is_the_minimum_over_all_key_groups() -> None:
    """A group that has emitted nothing holds it, and so does one that is idle while others are not."""
    assert combined(a={"watermark_ms": 7}).emit() == ()
    assert combined(a={"watermark_ms": 7}, b={"watermark_ms": 5, "idle": True}).emit() == (Watermark(5),)


def test_elements_are_emitted_where_they_change() -> None:
    """A second report of the same values emits nothing."""
    query = combined(a={"watermark_ms": 7}, b={"watermark_ms": 7})

    assert query.emit() == (Watermark(7),)
    query.take("w/a", {"watermark_ms": 7, "idle": False})
    assert query.emit() == ()
    query.take("w/a", {"watermark_ms": 9})
    assert query.emit() == ()
    query.take("w/b", {"watermark_ms": 8})
    assert query.emit() == (Watermark(8),)


def test_query_is_idle_when_all_its_key_groups_are() -> None:
    """The query is active again when its first key group is."""
    query = combined(a={"idle": True})

    assert query.emit() == ()
    query.take("w/b", {"idle": True})
    assert query.emit() == (IDLE,)
    query.take("w/a", {"idle": False})
    assert query.emit() == (ACTIVE,)


def test_status_and_watermark_keep_the_order_of_the_reports() -> None:
    """A buffer may hold them in either order."""
    first = {"idle": True, "watermark_ms": 3}
    last = {"watermark_ms": 3, "idle": True}

    assert combined(a=first, b=first).emit() == (IDLE, Watermark(3))
    assert combined(a=last, b=last).emit() == (Watermark(3), IDLE)


def test_report_has_the_latest_element_of_each_kind() -> None:
    """Attributes and markers are not part of it."""
    report: Report = {}

    for element in (Watermark(1), IDLE, RecordAttributes(True), LatencyMarker(1, "op", 0), Watermark(2)):
        add_to_report(report, element)

    assert list(report.items()) == [("idle", True), ("watermark_ms", 2)]


def test_restored_query_emits_everything_again() -> None:
    """Key groups that are gone are ignored; a new one holds the watermark."""
    kept = combined(a={"watermark_ms": 7}, b={"watermark_ms": 8}).snapshot()

    same, other = combined(), CombinedElements(["a", "c"])
    same.restore(kept)
    other.restore(kept)

    assert same.emit() == (Watermark(7),)
    assert other.emit() == ()


def test_idle_operator_does_not_hold_the_watermark_of_another_one() -> None:
    """Nor does one that has ended. If all others are idle, the end of one is not the end of time."""
    query = CombinedElements(["a/0", "b/0", SOURCES])
    for name, report in {
        "a/0": {"watermark_ms": 5},
        "b/0": {"watermark_ms": 7},
        SOURCES: {"watermark_ms": 9},
    }.items():
        query.take(name, report)

    assert query.emit() == (Watermark(5),)
    query.take("a/0", {"idle": True})
    assert query.emit() == (Watermark(7),)
    query.take("b/0", {"watermark_ms": MAX_TIMESTAMP_MS})
    assert query.emit() == (Watermark(9),)
    query.take(SOURCES, {"idle": True})
    assert query.emit() == ()
    query.take("a/0", {"idle": False, "watermark_ms": 6})
    assert query.emit() == ()
    query.take("a/0", {"watermark_ms": MAX_TIMESTAMP_MS})
    query.take(SOURCES, {"watermark_ms": MAX_TIMESTAMP_MS, "idle": False})
    assert query.emit() == (Watermark(MAX_TIMESTAMP_MS),)


def test_sources_are_active_after_a_restart() -> None:
    """They report their status when it changes, and begin as active."""
    query = CombinedElements([SOURCES])
    query.take(SOURCES, {"idle": True})
    restarted = CombinedElements([SOURCES])

    restarted.restore(query.snapshot())

    assert restarted.emit() == ()
