"""The flow: its graph and its sources, and how a flow is imported by name.

Declaring a flow starts no JVM and reads no data.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from flowcore.api import checks
from flowcore.api.attributes import Attributes, collect_declared
from flowcore.api.connectors import KafkaTopic, Source
from flowcore.api.event_time import require_event_time
from flowcore.api.graph import Graph
from flowcore.api.operators import Read
from flowcore.api.schema import Schema
from flowcore.api.stream import Stream
from flowcore.errors import ConfigurationError, PlanError


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
            checks.refuse(
                f"operator {name!r}: {source} has no schema: a flow is checked before any data is "
                "seen; pass schema='id BIGINT, price DOUBLE'"
            )
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


def load_flow(text: str) -> Flow:
    """Import a module and return one of its flows, from ``MODULE:FLOW`` with the name of a variable.

    Raises:
        ConfigurationError: The text is not of this form, or there is no such module.
        PlanError: The module has no such flow, or the flow in it cannot be declared.
    """
    module_name, _, attribute = text.partition(":")
    if not module_name or not attribute:
        msg = f"{text!r} is not MODULE:FLOW; pass for instance my_flows.sales:flow"
        raise ConfigurationError(msg)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        msg = f"there is no module {module_name!r} in {Path.cwd()} or on PYTHONPATH"
        raise ConfigurationError(msg) from error
    found = getattr(module, attribute, None)
    if not isinstance(found, Flow):
        flows = [name for name, item in vars(module).items() if isinstance(item, Flow)]
        has = ", ".join(flows) or "none"
        msg = f"module {module_name!r} has no flow {attribute!r}; its flows are: {has}"
        raise PlanError(msg)
    return found
