"""The examples in the docs of windows, process functions and state run unchanged and in order."""

import re
from pathlib import Path
from typing import Any

from flowcore.planner import plan_flow

PAGES = ("windows.md", "process-functions.md", "state.md")
DOCS = Path(__file__).parents[3] / "docs"


def test_examples_of_windows_and_process_functions_run() -> None:
    """Later pages use the flow of the first one."""
    names: dict[str, Any] = {}
    run = 0
    for page in PAGES:
        for example in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
            exec(compile(example, page, "exec"), names)  # noqa: S102 - our own pages
            run += 1

    assert run >= 8
    assert "per_category" in plan_flow(names["flow"]).explain()
