"""The flow: its graph, and how a user adds sources to it.

Declaring a flow starts no JVM and reads no data.
"""

from __future__ import annotations

from flowcore.api import checks
from flowcore.api.attributes import Attributes, collect_declared
from flowcore.api.connectors import KafkaTopic, Source
from flowcore.api.event_time import require_event_time
from flowcore.api.graph import Graph
from flowcore.api.operators import Read
from flowcore.api.schema import Schema
from flowcore.api.stream import Stream
from flowcore.errors import PlanError

__all__ = ["Flow"]


class Flow(Graph):
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

    def read(self, name: str, source: Source, *, attributes: Attributes | None = None) -> Stream:
        """Read a source; bounded, unless it is a `KafkaTopic` without ``until``.

        Raises:
            PlanError: The name is taken, the source has no schema, its event time or its markers cannot
                be computed from it, or the form of its elements is not known.
        """
        if source.schema is None:
            msg = (
                f"operator {name!r}: {source} has no schema: a flow is checked before any data is "
                "seen; pass schema='id BIGINT, price DOUBLE'"
            )
            raise PlanError(msg)
        schema = Schema.parse(source.schema)
        checks.require_readable(name, source)
        bounded = not isinstance(source, KafkaTopic) or source.until is not None
        node = Read(
            name=name, inputs=(), columns=schema.names, source=source, schema=schema,
            bounded=bounded, declared_attributes=collect_declared(attributes),
        )  # fmt: skip
        require_event_time(node)
        self.register(node)
        return Stream(self, node)
