"""Co-groups: how are two bounded streams declared to be grouped by a key?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowcore.api import checks
from flowcore.api.attributes import Attributes, collect_declared
from flowcore.api.functions import require_function
from flowcore.api.grouping import (
    GROUPED,
    BatchGroupFunction,
    RecordGroupFunction,
    require_ends,
    side_aggregates,
)
from flowcore.api.operators import CoGroup, Operator
from flowcore.api.schema import Schema
from flowcore.errors import PlanError

if TYPE_CHECKING:
    from flowcore.api.flow import Flow
    from flowcore.api.stream import Stream

__all__ = ["co_group"]


def co_group(
    flow: Flow,
    left: Operator,
    right: Operator,
    name: str,
    *,
    on: str | Sequence[str] | Mapping[str, str],
    function: Callable[[Any, Any, Any], Any] | None,
    schema: Schema | str | None,
    batches: bool,
    aggregates: Mapping[str, str],
    attributes: Attributes | None,
) -> Stream:
    """The co-group of two operators' outputs; the arguments are those of `Stream.co_group`.

    With a function it is two operators: one that lists the records of each key, and the function.
    """
    require_ends({each.name: each.bounded for each in (left, right)}, name)
    pairs = checks.join_columns(left, right, name, on)
    if (function is None) == (not aggregates) or (function is None) != (schema is None):
        msg = (
            f"operator {name!r} needs either aggregates or a function with its schema: what it puts out is "
            "unknown; pass for instance total='sum(left.price)', or a function and schema='id BIGINT'"
        )
        raise PlanError(msg)
    if function is not None:
        require_function(function, name)
    keys = tuple(mine for mine, _ in pairs)
    lists = {column: f"collect_list({column[1:]})" for column in GROUPED}
    parsed = side_aggregates(aggregates or lists, {"left": left.columns, "right": right.columns}, name)
    columns = (*keys, *(column for column, _ in parsed))
    checks.require_distinct(name, columns)
    groups = flow.add(
        CoGroup(
            name=name if function is None else f"{name}_groups", inputs=(left, right), columns=columns,
            bounded=True, key=keys, on=pairs, aggregates=parsed,
            declared_attributes=collect_declared(attributes) if function is None else {},
        )
    )  # fmt: skip
    if function is None or schema is None:
        return groups
    if batches:
        of_batches = BatchGroupFunction(function, on=keys)
        return groups.map_batches(of_batches, schema=schema, name=name, attributes=attributes)
    return groups.flat_map(
        RecordGroupFunction(function, on=keys), schema=schema, name=name, attributes=attributes
    )
