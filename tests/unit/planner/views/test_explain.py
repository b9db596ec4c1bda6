"""What a plan says of itself: read these files to see how flows are planned, and why so.

A change of the planner shows as a change of a file in ``golden``: the text, the diagram, and every
decision. To accept it, run ``python -m tests.unit.planner.views.test_explain``.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic
from flowcore.planner import plan_flow
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from tests.idle_functions import IdleProcess
from tests.unit.planner.views.native_flows import NATIVE_FLOWS
from tests.unit.planner.views.stateful_flows import STATEFUL_FLOWS

GOLDEN = Path(__file__).parent / "golden"

FLOWS = [*NATIVE_FLOWS, *STATEFUL_FLOWS]
SETTINGS = {
    "flushed_by_the_trigger": {"execution.flush.max-interval": "2 min"},
    "flushed_by_key_group": {
        "execution.flush.max-interval": "1 s",
        "execution.flush.memory-buffer-only": True,
    },
    "keyed_process": {"state.key-groups": 4},
    "tracked": {"metrics.latency.interval": "1 s"},
    "object_reuse": {"pipeline.object-reuse": True},
    "python_formats": {"pipeline.force-timestamp-support": False, "pipeline.auto-watermark-interval": "0"},
}
FORMS: dict[str, Callable[[Plan], str]] = {
    "txt": lambda plan: plan.explain(),
    "mmd": lambda plan: plan.to_mermaid(),
    "json": lambda plan: _one_line_each(plan.to_dict()),
}


def _plan(declare: Callable[[], Flow]) -> Plan:
    return plan_flow(declare(), settings=Settings.of(SETTINGS.get(declare.__name__, {}), environment={}))


def _one_line_each(document: dict[str, Any]) -> str:
    """JSON with one operator, edge or chain a line: a change of one decision changes one line."""
    lines = [json.dumps(document["flow"])]
    for part in document["parts"]:
        lists = ("operators", "edges", "chains")
        lines.append(json.dumps({key: value for key, value in part.items() if key not in lists}))
        lines += [f"  {key[:-1]} {json.dumps(each)}" for key in lists for each in part[key]]
    return "\n".join(lines)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("declare", FLOWS, ids=lambda declare: declare.__name__)
def test_plan_equals_its_golden_files(declare: Callable[[], Flow], form: str) -> None:
    """Text, diagram and decisions equal the reviewed ones."""
    expected = (GOLDEN / f"{declare.__name__}.{form}").read_text()

    assert FORMS[form](_plan(declare)) + "\n" == expected


def test_golden_files_all_belong_to_a_flow() -> None:
    """A golden file without a flow fails the test."""
    named = {f"{declare.__name__}.{form}" for declare in FLOWS for form in FORMS}

    assert {path.name for path in GOLDEN.iterdir()} == named


@pytest.mark.parametrize("declare", FLOWS, ids=lambda declare: declare.__name__)
def test_plan_is_the_same_each_time(declare: Callable[[], Flow]) -> None:
    """It depends on flow and settings only."""
    first, again = _plan(declare), _plan(declare)

    assert first.explain(verbose=True) == again.explain(verbose=True)
    assert json.loads(json.dumps(first.to_dict())) == again.to_dict()


@pytest.mark.parametrize("declare", FLOWS, ids=lambda declare: declare.__name__)
def test_verbose_text_begins_with_the_short_one_and_names_every_rule(declare: Callable[[], Flow]) -> None:
    """Every inactive rule has a reason."""
    plan = _plan(declare)
    text = plan.explain(verbose=True)

    assert text.startswith(plan.explain())
    for part in plan.to_dict()["parts"]:
        for each in [*part["operators"], *part["edges"]]:
            decisions = [value for value in each.values() if isinstance(value, dict) and "because" in value]
            assert decisions
            for decision in decisions:
                assert decision["because"]
                assert f": {decision['value']} because {'; '.join(decision['because'])}" in text


@pytest.mark.parametrize("declare", FLOWS, ids=lambda declare: declare.__name__)
def test_diagram_has_every_operator_and_closes_every_box(declare: Callable[[], Flow]) -> None:
    """Arrows connect declared nodes, and no name ends a label early."""
    plan = _plan(declare)
    lines = [line.strip() for line in plan.to_mermaid().splitlines()]
    nodes = {line.partition("[")[0] for line in lines if "[" in line and "--" not in line.partition("[")[0]}
    arrows = [line for line in lines if any(arrow in line.split('"')[0] for arrow in ("-->", "==>", "-.->"))]

    assert sum(line.startswith("subgraph") for line in lines) == lines.count("end")
    for arrow in arrows:
        sender, receiver = arrow.split()[0], arrow.split()[-1].partition("[")[0]
        assert sender in nodes
        assert receiver in nodes or "dead-letter" in arrow
    assert all(line.count('"') % 2 == 0 and line.count('"') <= 2 for line in lines)
    for stage in plan.bounded:
        assert all(f"{node.name}: " in plan.to_mermaid() for node in stage.operators)


@pytest.mark.parametrize("form", FORMS)
def test_plan_names_dead_letter_topics_by_their_topic(form: str) -> None:
    """The operator that reads the topic has another name."""
    flow = Flow("shop")
    bids = flow.read("bids", KafkaTopic("raw-bids", schema="shop STRING, price DOUBLE"))
    named = bids.map(dict, schema="shop STRING", name="named")
    named.process(IdleProcess(), by="shop", schema="shop STRING").write("out", KafkaTopic("out"))

    shown = FORMS[form](plan_flow(flow)) + plan_flow(flow).explain(verbose=True)

    assert "raw-bids.dead-letter" in FORMS[form](plan_flow(flow))
    assert "unchanged" in shown
    assert not re.search(r"(?<!raw-)bids\.dead-letter", shown)


if __name__ == "__main__":
    for declare in FLOWS:
        for form, show in FORMS.items():
            (GOLDEN / f"{declare.__name__}.{form}").write_text(show(_plan(declare)) + "\n")
