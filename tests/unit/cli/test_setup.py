"""`flowcore setup` writes files that other users of the machine cannot read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from flowcore.cli import setup
from flowcore.errors import InstallationError


def test_home_of_dagster_is_its_users_only(tmp_path: Path) -> None:
    """Its databases and logs show what runs did; a folder that exists is closed to others."""
    before = os.umask(0)
    try:
        setup._write_dagster_home(tmp_path / "new")
        (tmp_path / "old").mkdir(mode=0o755)
        setup._write_dagster_home(tmp_path / "old")
    finally:
        os.umask(before)

    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new", "old")]
    assert modes == [0o700, 0o700]
    assert (tmp_path / "new/dagster.yaml").is_file()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_home_of_another_user_is_refused(tmp_path: Path) -> None:
    """That user could change what Dagster runs next."""
    os.chown(tmp_path, 4711, -1)

    with pytest.raises(
        InstallationError, match=r"belongs to user 4711, who could read and change .* your own"
    ):
        setup._write_dagster_home(tmp_path)

    assert not (tmp_path / "dagster.yaml").exists()
