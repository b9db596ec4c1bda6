"""The tutorial works as it is written, from the wheel to Dagster: its commands run in one shell."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flowcore.installation.cache import cache_folder
from flowcore.kafka.broker import free_port

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
LONGEST_S = 3_600.0


def _script() -> str:
    """The blocks of the page: files are written, commands are commands."""
    lines = ["set -eux"]
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        if language:
            name, text = re.fullmatch(r"# (\S+)\n(.*)", block, re.DOTALL).groups()  # type: ignore[union-attr]
            lines.append(f"cat > {name} <<'END OF FILE'\n{text}END OF FILE")
        else:
            lines.append(block)
    return "\n".join(lines)


def test_every_command_of_the_tutorial_succeeds(tmp_path: Path) -> None:
    """The program that the page verifies the topics with finds nothing lost, four times."""
    home, dist = tmp_path / "home", tmp_path / "dist"
    (home / "first-hour").mkdir(parents=True)
    port = str(free_port())
    script = _script().replace("9092", port).replace("dist/flowcore", f"{dist}/flowcore")
    script = script.replace("--wheel-dir dist", f"--wheel-dir {dist}")  # the checkout stays as it is
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLOWCORE_")}
    environment |= {"HOME": str(home), "FLOWCORE_CACHE": str(cache_folder())}
    environment["PATH"] = f"{Path(sys.base_prefix) / 'bin'}:/usr/bin:/bin"  # not the checkout's environment

    with subprocess.Popen(
        ["bash", "-c", script], cwd=ROOT, env=environment, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as shell:  # fmt: skip
        try:
            output, _ = shell.communicate(timeout=LONGEST_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)

    assert shell.returncode == 0, output[-5_000:]
    found = re.findall(
        r"^(\d+) offers: \d+ bargains, \d+ dead letters, \d+ repeats dropped$", output, re.MULTILINE
    )
    assert found == ["1000", "2000", "3000", "4000"]
