"""The flow: how a user declares sources, operators and sinks.

Declaring a flow starts no JVM and reads no data. Every mistake that can be seen from names alone
is an error here, with the name of the operator and the column.
"""

from __future__ import annotations

from flowcore.api import checks
from flowcore.api.attributes import Attributes, collect_declared
from flowcore.api.connectors import KafkaTopic, Source
from flowcore.api.event_time import require_event_time
from flowcore.api.flushing import require_flushable
from flowcore.api.operators import Operator, Read, Write
from flowcore.api.schema import Schema
from flowcore.api.stream import Stream
from flowcore.errors import PlanError

__all__ = ["Flow"]


class Flow:
    """A named graph of operators.

    Args:
        name: Letters, digits, ``_``, ``-``, ``.``; names folders, checkpoints and Dagster assets.

    >>> from flowcore import Flow, Parquet
    >>> flow = Flow("report")
    >>> sales = flow.read("sales", Parquet("sales", schema="shop STRING, price DOUBLE"))
    >>> totals = sales.aggregate(by="shop", total="sum(price)")
    >>> totals.columns
    ('shop', 'total')
    """

    def __init__(self, name: str) -> None:
        checks.require_name("flow", name)
        self.name = name
        self._operators: dict[str, Operator] = {}

    @property
    def operators(self) -> tuple[Operator, ...]:
        """All operators in the order of their declaration."""
        return tuple(self._operators.values())

    @property
    def sinks(self) -> tuple[Write, ...]:
        """The operators that write."""
        return tuple(node for node in self.operators if isinstance(node, Write))

    def read(self, name: str, source: Source, *, attributes: Attributes | None = None) -> Stream:
        """Read a source; bounded, unless it is a `KafkaTopic` without ``until``.

        Raises:
            PlanError: The name is taken, the source has no schema, its event time or its markers cannot
                be computed from it, or nothing says in what form its elements are.
        """
        if source.schema is None:
            msg = (
                f"operator {name!r}: {source} has no schema: a flow is checked before any data is "
                "seen; pass schema='id BIGINT, price DOUBLE'"
            )
            raise PlanError(msg)
        schema = Schema.parse(source.schema)
        bounded = not isinstance(source, KafkaTopic) or source.until is not None
        checks.require_readable(name, source)
        node = Read(
            name=name, inputs=(), columns=schema.names, bounded=bounded, source=source, schema=schema,
            declared_attributes=collect_declared(attributes),
        )  # fmt: skip
        require_event_time(node)
        return self.add(node)

    def add(self, node: Operator) -> Stream:
        """Take a new operator into the flow; the methods of `Stream` call it.

        Raises:
            PlanError: Its name is taken or cannot name a folder, or it waits for the end of an input
                that has none.
        """
        checks.require_name("operator", node.name)
        if node.name.lower() in self._operators:
            msg = (
                f"flow {self.name!r} has two operators named {node.name!r}: their results and "
                "checkpoints could not be told apart; give one another name"
            )
            raise PlanError(msg)
        checks.require_attributes(node)
        require_flushable(node)
        self._operators[node.name.lower()] = node
        return self.stream(node)

    def stream(self, node: Operator) -> Stream:
        """The output of one of its operators."""
        return Stream(self, node)

    def free_name(self, kind: str) -> str:
        """A name for an operator that was given none: ``select_1``, ``select_2``, ..."""
        number = 1
        while f"{kind}_{number}" in self._operators:
            number += 1
        return f"{kind}_{number}"
