"""Choose the aggregates of unbounded input that run by key group instead of as Spark's own.

Spark refuses its own aggregate upstream of another operator with state. An aggregate whose rows another
aggregate, or a ranking, takes back therefore keeps its state by key group.
"""

from dataclasses import fields, replace

from flowcore.api.expiring_aggregate import build_expiring_aggregate
from flowcore.api.operators import Aggregate, ChangelogNormalize, Operator
from flowcore.errors import PlanError

__all__ = ["can_expire", "move_to_key_groups"]


def move_to_key_groups(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """The operators of a flow, with the aggregates upstream of a changelog by key group.

    Raises:
        PlanError: An aggregate cannot run by key group.
    """
    upstream = {each for node in operators if isinstance(node, ChangelogNormalize) for each in node.upstream}
    moved = {node for node in upstream if isinstance(node, Aggregate) and not node.bounded}
    if not moved:
        return operators
    placed: dict[Operator, Operator] = {}
    for node in operators:  # in the order of declaration: inputs before readers
        inputs = tuple(placed[parent] for parent in node.inputs)
        now = node if inputs == node.inputs else replace(node, inputs=inputs)
        placed[node] = _by_key_group(now) if node in moved and isinstance(now, Aggregate) else now
    return tuple(placed.values())


def can_expire(node: Operator) -> bool:
    """Whether ``ttl=`` would make an operator run by key group: an aggregate of built-in functions."""
    if not isinstance(node, Aggregate):
        return False
    try:
        _by_key_group(node)
    except PlanError:
        return False
    return True


def _by_key_group(node: Aggregate) -> Operator:
    own = {each.name: getattr(node, each.name) for each in fields(Operator)}
    return build_expiring_aggregate(own, node.by, {name: each.text for name, each in node.aggregates}, None)
