"""The watermark and status of a query's sinks are the combination over its key groups."""

from flowcore.elements import LatencyMarker, RecordAttributes, Watermark, WatermarkStatus
from flowcore.keyed.emitted import CombinedElements, Report, add_to_report

IDLE, ACTIVE = WatermarkStatus(idle=True), WatermarkStatus(idle=False)


def combined(**reports: Report) -> CombinedElements:
    """Two key groups, with a report of each."""
    found = CombinedElements(["a", "b"])
    for group, report in reports.items():
        found.take(group, report)
    return found


def test_watermark_is_the_minimum_over_all_key_groups() -> None:
    """A group that has emitted nothing holds it, and so does one that is idle while others are not."""
    assert combined(a={"watermark_ms": 7}).emit() == ()
    assert combined(a={"watermark_ms": 7}, b={"watermark_ms": 5, "idle": True}).emit() == (Watermark(5),)


def test_elements_are_emitted_where_they_change() -> None:
    """A second report of the same values emits nothing."""
    query = combined(a={"watermark_ms": 7}, b={"watermark_ms": 7})

    assert query.emit() == (Watermark(7),)
    query.take("a", {"watermark_ms": 7, "idle": False})
    assert query.emit() == ()
    query.take("a", {"watermark_ms": 9})
    assert query.emit() == ()
    query.take("b", {"watermark_ms": 8})
    assert query.emit() == (Watermark(8),)


def test_query_is_idle_when_all_its_key_groups_are() -> None:
    """The query is active again when its first key group is."""
    query = combined(a={"idle": True})

    assert query.emit() == ()
    query.take("b", {"idle": True})
    assert query.emit() == (IDLE,)
    query.take("a", {"idle": False})
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
