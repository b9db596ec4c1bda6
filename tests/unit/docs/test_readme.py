"""The programs of README and tutorial run, and print what stands beside them."""

from __future__ import annotations

import re
from pathlib import Path

from flowcore.planner import plan_flow
from flowcore.planner.views.svg import render_svg
from flowcore.planner.views.text import render_text

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()


def test_readme_shows_the_plan_of_its_program() -> None:
    """The first code block is the program, the second the text of its plan."""
    program, plan = re.findall(r"^```\w*\n(.*?)^```", README, re.DOTALL | re.MULTILINE)[:2]
    names: dict[str, object] = {}

    exec(compile(program, "README.md", "exec"), names)  # noqa: S102 - our own README

    assert plan.rstrip() == render_text(plan_flow(names["flow"]))  # type: ignore[arg-type]


def test_tutorial_shows_the_plan_of_its_flow() -> None:
    """`flowcore plan shop:flow --format svg` made the picture."""
    (program,) = re.findall(r"^```python\n(# shop.py\n.*?)^```", TUTORIAL, re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {}

    exec(compile(program, "tutorial.md", "exec"), names)  # noqa: S102 - our own page

    picture = (ROOT / "docs" / "pictures" / "plan.svg").read_text()
    assert picture.rstrip() == render_svg(plan_flow(names["flow"])).rstrip()  # type: ignore[arg-type]
