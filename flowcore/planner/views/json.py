"""Document: a plan as what JSON can hold, for tools and dashboards."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from flowcore.api.decisions import Decision
from flowcore.planner.model import BoundedStage, Chain, Flush, LiveQuery, PlanData
from flowcore.planner.rules.compatibility import derive_needs
from flowcore.planner.views.details import (
    EdgeDetail,
    OperatorDetail,
    PartDetail,
    collect_details,
    describe,
    end_name,
)

__all__ = ["render_json"]


def render_json(plan: PlanData) -> dict[str, Any]:
    """A plan as mappings, lists, text, numbers and truth values, the same whenever it is made."""
    return {"flow": plan.flow, "parts": [_part(part) for part in collect_details(plan)]}


def _part(part: PartDetail) -> dict[str, Any]:
    runs = part.runs
    kind: dict[str, Any] = (
        {
            "kind": "bounded stage",
            "results": [result.name for result in runs.results],
        }
        if isinstance(runs, BoundedStage)
        else {
            "kind": "live query",
            "joins": [node.name for node in runs.results],
            "split": _decision(runs.split),
            "backlog": _decision(runs.backlog),
            "catch_up": _decision(runs.catch_up),
            "checkpoint_needs": _needs(runs),
            "latency": _decision(runs.latency),
            "dead_letters": [f"{source.name}.dead-letter" for source in runs.dead_letters],
        }
    )
    return {
        "stage": part.number,
        "name": runs.name,
        **kind,
        "mode": _decision(part.mode),
        "start": _decision(runs.start),
        "checkpoint": _decision(runs.checkpoint),
        "operators": [_operator_document(each) for each in part.operators],
        "edges": [_edge_document(each) for each in part.edges],
        "chains": [
            {"operators": [node.name for node in chain.operators], "columns": list(_entering(part, chain))}
            for chain in runs.chains
        ],
    }


def _needs(query: LiveQuery) -> dict[str, Any]:
    needs = derive_needs(query)
    states = [
        {**asdict(state), "keys": list(state.keys), "values": list(state.values)} for state in needs.states
    ]
    return {"fingerprint": needs.fingerprint, "sources": list(needs.sources), "states": states}


def _entering(part: PartDetail, chain: Chain) -> tuple[str, ...]:
    return next(edge.columns or () for edge in part.edges if edge.receiver is chain.head)


def _operator_document(detail: OperatorDetail) -> dict[str, Any]:
    return {
        "name": detail.node.name,
        "what": describe(detail.node),
        "columns": list(detail.node.columns),
        "compiled": _decision(detail.compiled),
        "output": _decision(detail.output),
        "flush": _flush(detail.flush),
        **{name: _decision(each) for name, each in _some_have(detail).items() if each},
        "attributes": asdict(detail.attributes),
        "unknown_attributes": list(detail.unknown),
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


def _some_have(detail: OperatorDetail) -> dict[str, Decision | None]:
    return {
        "failure": detail.failure, "filter": detail.place, "state": detail.state, "late": detail.late,
        "alignment": detail.alignment,
    }  # fmt: skip


def _edge_document(edge: EdgeDetail) -> dict[str, Any]:
    return {
        "from": end_name(edge.sender),
        "to": end_name(edge.receiver),
        "kind": _decision(edge.kind),
        "elements": _decision(edge.elements),
        "copy": _decision(edge.copy),
        "columns": None if edge.columns is None else list(edge.columns),
    }


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "value": decision.value,
        "because": list(decision.reasons),
        "to_change_it": list(decision.change),
    }
