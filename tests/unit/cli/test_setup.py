"""`flowcore setup` writes files that other users of the machine cannot read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from flowcore.cli import setup


def test_home_of_dagster_is_its_users_only(tmp_path: Path) -> None:
    """Its databases and logs show what runs did; a folder that exists keeps its mode."""
    before = os.umask(0)
    try:
        setup._write_dagster_home(tmp_path / "new")
        (tmp_path / "old").mkdir(mode=0o755)
        setup._write_dagster_home(tmp_path / "old")
    finally:
        os.umask(before)

    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new", "old")]
    assert modes == [0o700, 0o755]
    assert (tmp_path / "new/dagster.yaml").is_file()
