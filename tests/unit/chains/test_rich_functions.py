"""Rich functions of a chain are opened and closed once per task."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from flowcore.chains import ChainSpec, ChainTask, Receiver, RecordDict, Step
from flowcore.errors import FunctionError
from tests.unit.chains.spied_ops import INPUT, SCHEMA


class Rich:
    """Records when it is opened, called and closed."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[str] = []
        self.fails = fails

    def open(self) -> None:
        self._call("open")

    def close(self) -> None:
        self._call("close")

    def __call__(self, record: RecordDict) -> RecordDict:
        self._call("record")
        return record

    def method(self, record: RecordDict, _more: int = 0) -> RecordDict:
        """A function that is a method."""
        return self(record)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails:
            msg = f"no {name}"
            raise OSError(msg)


def _rich_chain(*functions: Callable[[RecordDict], RecordDict]) -> ChainSpec:
    last: Step | None = None
    for number, function in reversed(list(enumerate(functions))):
        receivers = () if last is None else (Receiver(last),)
        outlet = 0 if last is None else None
        last = Step(
            name=f"op{number}",
            kind="map",
            function=function,
            schema=SCHEMA,
            receivers=receivers,
            outlet=outlet,
        )
    assert last
    return ChainSpec(SCHEMA, last)


def test_rich_functions_are_open_once_around_all_batches() -> None:
    """A function is opened once, however often its object occurs in the chain."""
    one, two = Rich(), Rich()
    task = ChainTask(_rich_chain(one, two, partial(one.method, _more=1)))

    with task.running():
        for _ in range(2):
            task.run(INPUT.slice(0, 1))

    assert one.calls == ["open", "record", "record", "record", "record", "close"]
    assert two.calls == ["open", "record", "record", "close"]


@pytest.mark.parametrize(
    ("fails", "calls"),
    [
        ("open", (["open", "close"], ["open"])),
        ("record", (["open", "record", "close"], ["open", "record", "close"])),
        ("close", (["open", "record", "close"], ["open", "record", "close"])),
    ],
    ids=["open", "record", "close"],
)
def test_rich_functions_are_closed_when_one_fails(fails: str, calls: tuple[list[str], list[str]]) -> None:
    """All opened functions are closed, and the error names the failing one."""
    one, two = Rich(), Rich(fails)
    task = ChainTask(_rich_chain(one, two))

    with pytest.raises(FunctionError, match=f"operator 'op1'.*no {fails}"), task.running():
        task.run(INPUT.slice(0, 1))

    assert (one.calls, two.calls) == calls
