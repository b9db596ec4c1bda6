"""What Spark itself keeps as state of a streaming frame, as it describes it."""

import re
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

__all__ = ["stateful_parts"]

_STATEFUL = re.compile(
    r"Aggregate|Deduplicate\w*|Distinct|\w*MapGroups\w*|TransformWithState\w*|Join|\w*Limit"
)
_NUMBER = re.compile(r"#\d+L?")


def stateful_parts(frame: DataFrame) -> tuple[str, ...]:
    """The parts of a streaming frame that keep state, as Spark describes them, without column numbers.

    Types, and the state of a DataFrame function, are known only after Spark has analyzed them.
    """
    plan: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - PySpark shows no plan
    return tuple(
        _NUMBER.sub("", node.simpleString(1000)).lstrip("~")
        for node in _nodes(plan)
        if node.isStreaming() and _STATEFUL.fullmatch(node.nodeName())
        and all(child.isStreaming() for child in _children(node))
    )  # fmt: skip


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _children(plan):
        yield from _nodes(child)


def _children(plan: Any) -> list[Any]:
    children = plan.children()
    return [children.apply(number) for number in range(children.size())]
