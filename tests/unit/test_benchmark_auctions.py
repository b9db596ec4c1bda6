"""The reference flow of benchmarks reads bids from topics of several sizes."""

from __future__ import annotations

import json

from flowcore.planner import plan_flow
from flowcore.planner.rules.fingerprint import fingerprint_operators
from pipelines.auctions.flow import flow
from tests.benchmarks._auctions import BIDS, read_from


def test_flow_from_another_topic_is_the_same_but_for_the_topic() -> None:
    """Its bounded results are those of the reference flow, so they are made once."""

    def lines(plan: dict[str, object]) -> list[str]:
        text = json.dumps(plan, default=str, indent=1, sort_keys=True)
        return [line for line in text.splitlines() if '"fingerprint"' not in line]

    ours, theirs = (plan_flow(each, "slice") for each in (read_from("other"), flow))

    assert [node.name for node in read_from("other").operators] == [node.name for node in flow.operators]
    mine, of_reference = (
        fingerprint_operators(node for node in each.operators if node.bounded)
        for each in (read_from("other"), flow)
    )
    assert mine == of_reference
    changed = {a: b for a, b in zip(lines(ours.to_dict()), lines(theirs.to_dict()), strict=True) if a != b}
    assert changed
    assert {text.replace("other", BIDS) for text in changed} == {*changed.values()}
