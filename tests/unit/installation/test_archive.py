"""Class archives are made once, and used only where they fit."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from flowcore.errors import InstallationError
from flowcore.installation import archive
from flowcore.installation.archive import archive_file, compiler_options, driver_options, make_archive
from flowcore.installation.jars import jars


@pytest.mark.usefixtures("with_jars")
def test_archive_is_used_only_where_one_fits() -> None:
    """Without an archive Spark starts normally; an archive of this class path is quoted for its launcher."""
    without = [*_directives(), *compiler_options(short_lived=False)]
    assert driver_options() == without
    assert driver_options(short_lived=True) == ["-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m"]
    archive_file().parent.mkdir()
    archive_file().write_text("archive")
    assert driver_options()[0] == f'"-XX:SharedArchiveFile={archive_file()}"'

    archive_file().chmod(0o666)
    with pytest.raises(InstallationError, match=r"can be written by others"):
        driver_options()
    archive_file().chmod(0o644)

    os.utime(jars("connector")[0], (1, 1))

    assert driver_options() == without


def _directives() -> list[str]:
    file = Path(archive.__file__).with_name("compiler_directives.json")
    first = ["-XX:+UnlockDiagnosticVMOptions", "-XX:-DisplayVMOutput"]
    return [*first, f"-XX:CompilerDirectivesFile={file}"]


@pytest.mark.usefixtures("with_jars")
def test_archive_is_made_whole_and_once(tmp_path: Path) -> None:
    """Only the first caller creates it, and old archives beyond three are removed."""
    work = ["/bin/sh", "-c", f'echo x >>"{tmp_path}/calls"; echo archive >"$0"']
    folder = archive_file().parent
    folder.mkdir()
    for age in range(1, 5):
        (folder / f"spark-{age}.jsa").write_text("")
        os.utime(folder / f"spark-{age}.jsa", (age, age))
    made = make_archive(work)
    make_archive(work)

    assert made.read_text() == "archive\n"
    assert (tmp_path / "calls").read_text() == "x\n"
    assert sorted(folder.glob("*.jsa")) == sorted([made, folder / "spark-3.jsa", folder / "spark-4.jsa"])
    assert archive._KEEP == 3


@pytest.mark.usefixtures("with_jars")
def test_archive_in_use_stays_when_others_are_made() -> None:
    """Several environments share a cache; the archive of one of them is older than all others."""
    folder = archive_file().parent
    folder.mkdir()
    for age in range(1, 5):
        (folder / f"spark-{age}.jsa").write_text("")
        os.utime(folder / f"spark-{age}.jsa", (age, age))
    used = make_archive(["/bin/sh", "-c", 'echo archive >"$0"'])
    os.utime(used, (0, 0))
    driver_options()
    os.utime(jars("connector")[0], (1, 1))  # another environment

    made = make_archive(["/bin/sh", "-c", 'echo archive >"$0"'])

    assert sorted(folder.glob("*.jsa")) == sorted([made, used, folder / "spark-4.jsa"])


@pytest.mark.usefixtures("with_jars")
def test_failed_archive_reports_its_reason_and_leaves_no_file() -> None:
    """The message contains the last error of the failed job."""
    with pytest.raises(InstallationError, match=r"exit code 1, ValueError: no"):
        make_archive([sys.executable, "-c", "raise ValueError('no')"])
    assert not archive_file().exists()
