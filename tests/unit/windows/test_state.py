"""State of windows is written as plain data with a version, and is restored or refused."""

from __future__ import annotations

import datetime as dt
import doctest
import importlib
import json
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.errors import StateError
from flowcore.keyed.plain import from_plain, to_plain
from flowcore.testing.harness import WindowHarness
from flowcore.testing.window_functions import CollectList, Sum
from flowcore.windows import (
    SessionWindows,
    TumblingWindows,
    WindowAggregate,
    WindowConfig,
    WindowProcess,
    WindowReduce,
    WindowState,
)
from flowcore.windows.codec import decode_windows, encode_windows, window_state_layout

SUMS = WindowConfig(assigner=TumblingWindows(10), function=WindowAggregate(Sum()))

scalars = (
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False)
    | st.decimals(allow_nan=False) | st.datetimes(timezones=st.none() | st.just(dt.UTC)) | st.dates()
    | st.timedeltas()
)  # fmt: skip
keys = scalars | st.tuples(scalars, scalars)
plain = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(keys, inner)
)


@given(plain)
def test_plain_data_round_trips(value: Any) -> None:
    """Values keep their types through text."""
    back = from_plain(json.loads(json.dumps(to_plain(value), allow_nan=False)))

    assert back == value
    assert repr(back) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        object(), {1, 2}, [lambda: 1], type("Text", (str,), {})("x"),
        dt.datetime(2024, 7, 1, tzinfo=ZoneInfo("UTC")),
    ],
    ids=["object", "set", "inside", "subclass", "zone"],
)  # fmt: skip
def test_plain_data_refuses_what_would_come_back_as_something_else(value: Any) -> None:
    """The message names the types that can be kept."""
    with pytest.raises(StateError, match=r"not plain data|convert it to UTC"):
        to_plain(value)


@pytest.mark.parametrize(
    "written", [{}, {"set": [1]}, {"dict": [], "tuple": []}], ids=["none", "unknown", "two"]
)
def test_plain_data_refuses_what_it_has_not_written(written: Any) -> None:
    """Unknown data is refused."""
    with pytest.raises(StateError, match="is not plain data as flowcore writes it"):
        from_plain(written)


def test_keys_and_values_of_any_plain_kind_survive_a_restart() -> None:
    """Later records find a composite key."""
    harness = WindowHarness(WindowConfig(assigner=TumblingWindows(10), function=WindowProcess(CollectList())))
    key = ("shop", 7, b"\x00", dt.date(2024, 2, 29))

    harness.feed((key, {"price": Decimal("1.50")}, 3))
    harness.restart()
    harness.feed((key, {"price": float("inf")}, 4))
    harness.restart()
    (result,) = harness.watermark(9).results

    assert (result.key, result.value) == (key, [{"price": Decimal("1.50")}, {"price": float("inf")}])


def test_snapshot_does_not_change_with_the_state_it_was_taken_of() -> None:
    """Later records do not change a snapshot."""
    harness = WindowHarness(WindowConfig(assigner=TumblingWindows(10), function=WindowProcess(CollectList())))
    harness.feed(("a", [1], 3))
    written = harness.snapshot()
    text = json.dumps(written)

    harness.feed(("a", [2], 3))

    assert json.dumps(written) == text


def test_snapshot_reads_as_written() -> None:
    """The layout of version 1 changes only with the version."""
    harness = WindowHarness(
        WindowConfig(assigner=SessionWindows(10), function=WindowReduce(max), late="drop")
    )
    harness.feed(("a", 4, 0), ("a", 3, 5))
    harness.watermark(2)

    assert window_state_layout(harness.config) == "event-time sessions of reduced"
    assert harness.snapshot() == {
        "watermark_ms": 2,
        "clock_ms": 0,
        "backlog": False,
        "dropped_records": 0,
        "keys": [
            {
                "key": "a",
                "own": {"dict": []},
                "windows": [
                    {
                        "window": [0, 15],
                        "state_window": [0, 10],
                        "content": [[None, 4]],
                        "trigger": None,
                        "event_timers": [14],
                        "processing_timers": [],
                        "firings": 0,
                        "own": {"dict": []},
                    }
                ],
            }
        ],
    }


@pytest.mark.parametrize(
    ("version", "message"),
    [(b"\2", "state of version 2, this flowcore reads 1"), (b"", "state of version None")],
    ids=["newer", "none"],
)
def test_decode_refuses_other_versions(version: bytes, message: str) -> None:
    """Nothing of it is read."""
    written = encode_windows([], WindowState())

    with pytest.raises(StateError, match=message):
        decode_windows(version + (written[1:] if version else b""), WindowState(), SUMS)


@pytest.mark.parametrize(
    "config",
    [
        WindowConfig(assigner=TumblingWindows(10), function=WindowReduce(max)),
        WindowConfig(assigner=SessionWindows(10), function=WindowAggregate(Sum())),
    ],
    ids=["other-function", "other-windows"],
)
def test_layout_differs_where_state_cannot_be_restored(config: WindowConfig) -> None:
    """A manifest with another layout is refused."""
    assert window_state_layout(config) != window_state_layout(SUMS)


def test_timers_that_were_cancelled_take_no_memory() -> None:
    """A session that grows with each record has one timer at its end."""
    harness = WindowHarness(WindowConfig(assigner=SessionWindows(1000), function=WindowAggregate(Sum())))

    harness.feed(*(("a", 1, time_ms) for time_ms in range(5000)))
    queue = harness._state.event_timers

    assert len(queue) == 2
    assert len(queue._heap) < 100


def test_timers_that_are_asked_for_again_take_no_memory() -> None:
    """A window has one timer at its end, for any number of records."""
    harness = WindowHarness(WindowConfig(assigner=TumblingWindows(10_000), function=WindowAggregate(Sum())))

    harness.feed(*(("a", 1, time_ms) for time_ms in range(5000)))

    assert len(harness._state.event_timers._heap) == 2


@pytest.mark.parametrize(
    "name",
    ["flowcore.testing.harness", "flowcore.windows", "flowcore.keyed.plain",
     "flowcore.windows.window", "flowcore.windows.assigners"],
)  # fmt: skip
def test_examples_in_docstrings_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))

    assert result.attempted > 0
    assert result.failed == 0
