"""The flow: its graph, sources and streams, and how a flow is imported by name.

Declaring a flow starts no JVM and reads no data. A mistake that names and types show is an error where it is
declared, with the names of operator and column.
"""

import importlib
from collections.abc import Sequence
from pathlib import Path

from flowcore.api import checks
from flowcore.api.attributes import Attributes, collect_declared
from flowcore.api.connectors import KafkaTopic, Sink, Source
from flowcore.api.event_time import require_event_time
from flowcore.api.expressions import resolve
from flowcore.api.graph import Graph
from flowcore.api.keyed_stream import KeyedStream
from flowcore.api.operators import Read, Write
from flowcore.api.python_stream import PythonStream
from flowcore.api.relational_stream import RelationalStream
from flowcore.api.schema import Schema
from flowcore.api.value_formats import check_written
from flowcore.errors import ConfigurationError, PlanError

__all__ = ["Flow", "Stream", "load_flow"]


class Stream(RelationalStream, PythonStream, KeyedStream):
    """The output of one operator; its methods add operators downstream of it.

    Expressions are Spark SQL text over this stream's columns. Every method takes a ``name``, which
    errors, plans, results and checkpoints use; without one it gets a name such as ``select_1``. It also
    takes ``attributes``, which override those that the operator has of itself; see `OperatorAttributes`.
    """

    def write(
        self,
        name: str,
        sink: Sink,
        *,
        key: str | Sequence[str] | None = None,
        deleted: str | None = None,
        attributes: Attributes | None = None,
    ) -> None:
        """Write this stream to a sink.

        Args:
            sink: A `KafkaTopic`, or `Parquet`, `Csv`, `Json` files.
            key: Columns of the Kafka key; default: the sink's, else the stream's own key.
            deleted: A BOOLEAN column, which is not written. Where it is true, the record is a tombstone: its
                value is null, which deletes its key.

        Raises:
            PlanError: Later records replace or delete earlier ones, and the sink has no key to say which.
        """
        node = self.operator
        given = key if key is not None else sink.key if isinstance(sink, KafkaTopic) else None
        named = (given,) if isinstance(given, str) else node.key if given is None else tuple(given)
        keys = None if named is None else resolve(named, node.columns, name, f"key={given!r}")
        checks.require_writable(node, name, sink, keys)
        if deleted is not None:
            (deleted,) = resolve((deleted,), node.columns, name, f"deleted={deleted!r}")
            checks.require_deletable(name, sink, deleted, keys)
        if isinstance(sink, KafkaTopic):
            check_written(sink, [each for each in node.columns if each != deleted], name, keys)
        self.graph.register(Write(**self._fields(name, attributes, key=keys), sink=sink, deleted=deleted))


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
