"""Labels of operators in record ids: they stay the same while a query can continue from its checkpoint.

A generated operator name depends on what else is in the flow, so it is not used as a label. An operator
with state is labelled by what it keeps, a join by its table, and another operator that repeats records by the
number of such operators upstream.
"""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from flowcore.api.operators import Join, Operator, Union, WithHistory
from flowcore.planner.ways import find_live_sources

__all__ = ["label_states", "label_steps", "number_members"]

_DIGEST_BYTES = 6


def label_steps(operators: Iterable[Operator]) -> dict[Operator, str]:
    """The label of each operator that may make several records of one, and of the operators downstream of it.

    Args:
        operators: The operators of a query, each after its inputs.
    """
    passed: dict[Operator, Counter[str]] = {}
    labels = {}
    for node in operators:
        streams = node.inputs[:1] if isinstance(node, Join | WithHistory) else node.inputs
        before: Counter[str] = Counter()
        for parent in streams:
            before |= passed.get(parent, Counter())
        table = _table(node.inputs[1]) if isinstance(node, Join) else ""
        repeats = isinstance(node, Join | Union) or node.repeats_records
        passed[node] = before + Counter([table] if repeats else [])
        times = passed[node][table]
        labels[node] = f"{table}.{times}" if table and times > 1 else table or str(times)
    return labels


def label_states(operators: Iterable[Operator]) -> dict[Operator, str]:
    """The label of each operator with state: a digest of what it keeps, numbered if another keeps the same.

    Args:
        operators: The operators of a query, each after its inputs.
    """
    labels: dict[Operator, str] = {}
    known: Counter[str] = Counter()
    for node in operators:
        state = node.kept_state(0)
        if state is None:
            continue
        kept = hashlib.sha256(json.dumps({**asdict(state), "operator": None}).encode()).digest()
        label = base64.urlsafe_b64encode(kept[:_DIGEST_BYTES]).decode()
        known[label] += 1
        labels[node] = f"{label}.{known[label]}" if known[label] > 1 else label
    return labels


def number_members(inputs: Sequence[Operator], frames: Sequence[object]) -> list[int]:
    """The numbers of a union's inputs: those that may have the same source record have different ones.

    Args:
        inputs: The inputs.
        frames: The frame of each input; a topic that is read twice has a frame for each read.
    """
    topics = [{each.topic.name for each in find_live_sources([node]) if each.topic} for node in inputs]
    members = list(zip(frames, topics, strict=True))
    numbers: list[int] = []
    for frame, read in members:
        same = [other is frame or not read.isdisjoint(others) for other, others in members]
        numbers.append(1 + max((n for n, known in zip(numbers, same, strict=False) if known), default=-1))
    return numbers


def _table(node: Operator) -> str:
    """The source of a joined table; its name begins with a letter, so it is not a number."""
    while node.inputs:
        node = node.inputs[0]
    return node.name
