"""`flowcore plan` prints the plan as text, diagram or JSON, and starts no JVM."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flowcore.cli.plan import plan

FLOW = """
from flowcore import Flow, KafkaTopic, RichFunction

class Lookup(RichFunction):
    pass

flow = Flow("shop")
bids = flow.read("bids", KafkaTopic("bids", schema="shop STRING, price DOUBLE"))
found = bids.map(Lookup(), schema="shop STRING", name="found")
found.filter(bool, name="kept").write("out", KafkaTopic("out"))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user's module."""
    (tmp_path / "planned_shop.py").write_text(FLOW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def _plan(*arguments: str) -> Result:
    return CliRunner().invoke(plan, ["planned_shop:flow", *arguments])


def test_plan_is_text_unless_asked_otherwise() -> None:
    """The default is short."""
    text, same = _plan().output, _plan("--format", "text").output

    assert text == same
    assert text.startswith("flow shop: 1 stage\n")
    assert "found -> kept: deep because found may use its output records again; to change it" in text
    assert "every decision" not in text


def test_plan_verbose_names_inactive_rules() -> None:
    """Each inactive rule has its reason."""
    text = _plan("--verbose").output

    assert text.startswith(_plan().output.rstrip())
    assert "flush: off because no flush interval is set" in text
    assert "output_value_stored=true" in text


def test_plan_as_json_has_every_decision_with_settings() -> None:
    """The settings affect the plan."""
    (edge,) = (
        each
        for each in json.loads(_plan("--format", "json").output)["parts"][0]["edges"]
        if each["to"] == "kept"
    )
    reused = json.loads(_plan("--format", "json", "--set", "pipeline.object-reuse=true").output)

    assert edge["copy"]["value"] == "deep"
    assert edge["columns"] == ["shop"]
    assert [each["copy"]["value"] for each in reused["parts"][0]["edges"] if each["to"] == "kept"] == [
        "reuse"
    ]


def test_plan_as_mermaid_is_a_flowchart() -> None:
    """The output contains nothing else."""
    lines = _plan("--format", "mermaid").output.splitlines()

    assert lines[0] == "flowchart TD"
    assert 'subgraph p1c1["python chain"]' in [line.strip() for line in lines]


@pytest.mark.parametrize("form", ["json", "mermaid"])
def test_plan_refuses_verbose_where_it_changes_nothing(form: str) -> None:
    """The option would be ignored."""
    result = _plan("--verbose", "--format", form)

    assert result.exit_code == 2
    assert f"--format {form}" in result.output


def test_plan_starts_no_spark(folder: Path) -> None:
    """This holds for every format."""
    program = (
        "import sys; from planned_shop import flow; from flowcore.planner import plan_flow; "
        "p = plan_flow(flow); p.explain(verbose=True); p.to_mermaid(); p.to_dict(); "
        "print('pyspark' in sys.modules)"
    )
    path = ":".join([str(folder), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": path}, check=False, capture_output=True, text=True
    )

    assert done.stdout == "False\n", done.stderr
