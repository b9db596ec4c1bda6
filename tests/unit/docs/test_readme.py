"""The README's program runs and prints the README's output."""

from __future__ import annotations

import re
from pathlib import Path

from flowcore.planner import plan_flow
from flowcore.planner.views.text import render_text

README = (Path(__file__).parents[3] / "README.md").read_text()


def test_readme_shows_the_plan_of_its_program() -> None:
    """The first code block is the program, the second the text of its plan."""
    program, plan = re.findall(r"^```\w*\n(.*?)^```", README, re.DOTALL | re.MULTILINE)[:2]
    names: dict[str, object] = {}

    exec(compile(program, "README.md", "exec"), names)  # noqa: S102 - our own README

    assert plan.rstrip() == render_text(plan_flow(names["flow"]))  # type: ignore[arg-type]
