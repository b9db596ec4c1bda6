"""The examples of docs/windows.md run as they stand, one after the other."""

import re
from pathlib import Path
from typing import Any

from flowcore.planner import plan_flow

PAGE = Path(__file__).parents[3] / "docs" / "windows.md"


def test_examples_of_windows_run() -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    for example in examples:
        exec(compile(example, PAGE.name, "exec"), names)  # noqa: S102

    assert len(examples) >= 7
    assert "per_category" in plan_flow(names["flow"]).explain()
