"""`flowcore state` reads no more than there is."""

import subprocess
import sys
from pathlib import Path


def test_flow_without_state_is_shown_without_spark(tmp_path: Path) -> None:
    """A query of native operators keeps none, and its checkpoint has no folder for it."""
    checkpoint = tmp_path / "sales/checkpoints/orders"
    checkpoint.mkdir(parents=True)
    (checkpoint / "metadata").write_text("{}")
    code = (
        "import sys; from flowcore.cli.state import state;"
        f"state(['sales', '--set', 'state.dir={tmp_path}'], standalone_mode=False);"
        "print('pyspark' in sys.modules)"
    )

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.splitlines() == ["0 keys", "False"]
