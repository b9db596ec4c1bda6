"""The topics of a plan that begin with a history: their readers, and the seam."""

from collections.abc import Iterable

from flowcore.api.decisions import Decision
from flowcore.api.operators import Operator, WithHistory
from flowcore.errors import PlanError

__all__ = ["decide_history", "find_histories", "require_histories"]


def find_histories(operators: Iterable[Operator]) -> tuple[WithHistory, ...]:
    """The operators that let a topic begin with a history."""
    return tuple(node for node in operators if isinstance(node, WithHistory))


def decide_history(node: WithHistory) -> Decision:
    """Where a history ends and its topic begins, and why no record is counted twice."""
    reads_first = f"the query reads all of it before the first record of {node.live.name}"
    history, live = node.history.name, node.live.name
    why = f"records of {history} from it on are left out, and records of {live} before it or without a time"
    if node.at_ms is None:
        topic = node.live_topic.name
        same = any(each.topic is not None and each.topic.name == topic for each in node.history.upstream)
        why = "the history has it as its end" if same else "that the history ends there is not checked"
    return Decision(f"until {node.seam}", (why, reads_first))


def require_histories(operators: Iterable[Operator]) -> None:
    """Check that nothing else reads a topic that begins with a history.

    Raises:
        PlanError: Another operator or query reads the topic.
    """
    nodes = tuple(operators)
    for history in find_histories(nodes):
        others = [node.name for node in nodes if history.live in node.inputs and node is not history]
        if others:
            live = history.live.name
            msg = (
                f"operator {history.name!r} lets {live!r} begin with a history, and {others[0]!r} reads it, "
                "too: it would get the records of the history, or not, by chance; let it read "
                f"{history.name!r}, or read the topic a second time under another name"
            )
            raise PlanError(msg)
