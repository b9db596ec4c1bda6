"""The stream of a flow: all operators that can be added to it.

A mistake that names and types show is an error where it is declared, with the names of operator and column.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowcore.api import checks
from flowcore.api.attributes import Attributes
from flowcore.api.co_group_stream import CoGroupStream
from flowcore.api.connectors import KafkaTopic, Sink
from flowcore.api.expressions import resolve
from flowcore.api.keyed_stream import KeyedStream
from flowcore.api.operators import Write
from flowcore.api.relational_stream import RelationalStream
from flowcore.api.value_formats import check_written


class Stream(RelationalStream, CoGroupStream, KeyedStream):
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
        attributes: Attributes | None = None,
    ) -> None:
        """Write this stream to a sink.

        Args:
            sink: A `KafkaTopic`, or `Parquet`, `Csv`, `Json` files.
            key: Columns of the Kafka key; default: the sink's, else the stream's own key.

        Raises:
            PlanError: Later records replace earlier ones, and the sink has no key to say which.
        """
        node = self.operator
        given = key if key is not None else sink.key if isinstance(sink, KafkaTopic) else None
        named = (given,) if isinstance(given, str) else node.key if given is None else tuple(given)
        keys = None if named is None else resolve(named, node.columns, name, f"key={given!r}")
        checks.require_writable(node, name, sink, keys)
        if isinstance(sink, KafkaTopic):
            check_written(sink, node.columns, name, keys)
        self.graph.register(Write(**self._fields(name, attributes, key=keys), sink=sink))
