"""Arguments that cannot be meant are errors when they are declared, with the operator and what to pass."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Parquet, Tumbling, monotonous
from flowcore.errors import ConfigurationError

SCHEMA = "id BIGINT, item STRING, price DOUBLE, at BIGINT, tags ARRAY<STRING>, size STRUCT<x: INT, y: INT>"
HOUR = timedelta(hours=1)


class TimedStreams:
    """Two streams with event time, and a table; their columns differ but for ``id``."""

    def __init__(self) -> None:
        self.flow = Flow("timed")
        timed: dict[str, Any] = {"event_time": "at", "watermark": monotonous()}
        self.bids = self.flow.read("bids", KafkaTopic("bids", SCHEMA, **timed))
        asks = KafkaTopic("asks", "id BIGINT, ask DOUBLE, ask_at BIGINT", **{**timed, "event_time": "ask_at"})
        self.asks = self.flow.read("asks", asks)
        self.table = self.flow.read("table", Parquet("table", "id BIGINT, usual DOUBLE, seen_at BIGINT"))


LATE = r"operator '\w+': late='side_output' is not a choice: .*pass 'drop' or 'side-output'"

MISTAKES: dict[str, tuple[Callable[[TimedStreams], object], str]] = {
    "late-interval": (
        lambda g: g.bids.join_interval(g.asks, on="id", before=HOUR, after=HOUR, late="side_output"),
        LATE,
    ),
    "late-window-join": (
        lambda g: g.bids.join_window(g.asks, Tumbling(1), on="id", late="side_output"),
        LATE,
    ),
    "late-as-of": (lambda g: g.bids.join_asof(g.asks, on="id", late="side_output"), LATE),
    "late-sort": (lambda g: g.bids.sort_by_event_time(late="side_output"), LATE),
    "late-window": (lambda g: g.bids.window(Tumbling(1), late="side_output"), LATE),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_stream_refuses(case: str) -> None:
    """Nothing that it cannot do is planned; the message has one line."""
    declare, message = MISTAKES[case]

    with pytest.raises(ConfigurationError) as caught:
        declare(TimedStreams())

    assert re.search(message, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)
