"""Choose the aggregates of unbounded input that run by key group instead of as Spark's own.

Spark refuses its own aggregate upstream and downstream of another operator with state. An aggregate with such
neighbours in its query therefore keeps its state by key group. All others stay Spark's own, and can run in
real-time mode.
"""

from collections.abc import Iterator
from dataclasses import fields, replace

from flowcore.api.keyed_aggregate import build_keyed_aggregate
from flowcore.api.operators import Aggregate, Operator, StatefulOperator
from flowcore.api.type_checks import require_keys

__all__ = ["move_to_key_groups"]


def move_to_key_groups(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """The operators of a flow, with the aggregates by key group that have operators with state around them.

    Raises:
        PlanError: An aggregate cannot run by key group.
    """
    moved = {*_find_neighbours(operators)}
    if not moved:
        return operators
    placed: dict[Operator, Operator] = {}
    for node in operators:  # in the order of declaration: inputs before readers
        inputs = tuple(placed[parent] for parent in node.inputs)
        now = node if inputs == node.inputs else replace(node, inputs=inputs)
        placed[node] = _by_key_group(now) if node in moved and isinstance(now, Aggregate) else now
    return tuple(placed.values())


def _find_neighbours(operators: tuple[Operator, ...]) -> Iterator[Aggregate]:
    """The unbounded aggregates upstream or downstream of operators by key group, up to the next cut."""
    for node in operators:
        live = [each for each in node.upstream if not each.bounded]
        aggregates = [each for each in live if isinstance(each, Aggregate)]
        if _keeps_state_by_key_group(node):
            yield from aggregates
        elif isinstance(node, Aggregate) and any(map(_keeps_state_by_key_group, live)):
            yield node


def _keeps_state_by_key_group(node: Operator) -> bool:
    """Also a function with a flush interval of its own, if it buffers its output.

    It does not downstream of an aggregate that emits each key no more often.
    """
    if isinstance(node, StatefulOperator):
        return True
    interval_ms = 0 if node.emits_once_a_batch else node.flush_ms or 0
    upstream = node
    while interval_ms and upstream.inputs and upstream.keeps_keys_apart:
        upstream = upstream.inputs[0]
        if isinstance(upstream, Aggregate):
            return (upstream.flush_ms or 0) < interval_ms
    return bool(interval_ms)


def _by_key_group(node: Aggregate) -> Operator:
    own = {each.name: getattr(node, each.name) for each in fields(Operator)}
    aggregates = {name: each.text for name, each in node.aggregates}
    keyed = build_keyed_aggregate(own, node.by, aggregates, None)
    require_keys(keyed)
    return keyed
