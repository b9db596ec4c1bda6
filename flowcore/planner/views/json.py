"""A plan as JSON values, for tools and dashboards."""

from dataclasses import asdict
from typing import Any

from flowcore.api.decisions import Decision
from flowcore.planner.model import BoundedStage, Flush, LiveQuery, PlanData
from flowcore.planner.rules.compatibility import derive_needs
from flowcore.planner.views.details import (
    EdgeDetail,
    OperatorDetail,
    PartDetail,
    collect_details,
    describe,
    name_end,
)

__all__ = ["render_json"]

_FIRST = ("compiled", "output", "flush", "failure")


def render_json(plan: PlanData) -> dict[str, Any]:
    """A plan as mappings, lists, text, numbers and booleans, the same whenever it is made."""
    return {"flow": plan.flow, "parts": [_part(part) for part in collect_details(plan)]}


def _part(part: PartDetail) -> dict[str, Any]:
    runs = part.runs
    kind = (
        {"kind": "bounded stage", "results": [result.name for result in runs.results]}
        if isinstance(runs, BoundedStage)
        else _query(runs)
    )
    columns = {edge.receiver: list(edge.columns or ()) for edge in reversed(part.edges)}
    return {
        "stage": part.number,
        "name": runs.name,
        **kind,
        "mode": _decision(part.mode),
        "start": _decision(runs.start),
        "checkpoint": _decision(runs.checkpoint),
        "operators": [_operator(each) for each in part.operators],
        "edges": [_edge(each) for each in part.edges],
        "chains": [
            {"operators": [node.name for node in chain.operators], "columns": columns[chain.head]}
            for chain in runs.chains
        ],
    }


def _query(query: LiveQuery) -> dict[str, Any]:
    needs = derive_needs(query)
    states = [
        {**asdict(state), "keys": list(state.keys), "values": list(state.values)} for state in needs.states
    ]
    return {
        "kind": "live query",
        "joins": [node.name for node in query.results],
        "split": _decision(query.split),
        **({"follows": list(query.follows)} if query.follows else {}),
        "backlog": _decision(query.backlog),
        "catch_up": _decision(query.catch_up),
        "checkpoint_needs": {
            "fingerprint": needs.fingerprint, "sources": list(needs.sources), "states": states,
        },
        **({"idle_partitions": _decision(query.idle_partitions)} if query.idle_partitions else {}),
        "latency": _decision(query.latency),
        "delivery": _decision(query.delivery),
        "dead_letters": [source.dead_letter for source in query.dead_letters],
    }  # fmt: skip


def _operator(detail: OperatorDetail) -> dict[str, Any]:
    node, found = detail.node, detail.outcomes
    outcomes = {name: _decision(found[name]) for name in (*_FIRST, *found) if name in found}
    return {
        "name": node.name,
        "what": describe(node),
        "columns": list(node.columns),
        **outcomes,
        "flush": _flush(detail.flush),
        "attributes": asdict(node.attributes()),
        "unknown_attributes": list(node.undeclared_attributes()),
    }


def _flush(flush: Flush) -> dict[str, Any]:
    if flush.way == "off":
        return _decision(flush.decision)
    return {
        **_decision(flush.decision),
        "way": flush.way,
        "key": list(flush.key or ()),
        "interval_ms": flush.config.interval_ms if flush.config else None,
        "after": flush.after.name if flush.after else None,
    }


def _edge(edge: EdgeDetail) -> dict[str, Any]:
    return {
        "from": name_end(edge.sender),
        "to": name_end(edge.receiver),
        "kind": _decision(edge.kind),
        "elements": _decision(edge.elements),
        "copy": _decision(edge.copy),
        "columns": None if edge.columns is None else list(edge.columns),
    }


def _decision(decision: Decision) -> dict[str, Any]:
    return {"value": decision.value, "because": list(decision.reasons), "to_change_it": list(decision.change)}
