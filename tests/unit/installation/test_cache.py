"""The cache is a folder of the user alone, and one process at a time writes to it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest

from flowcore.errors import InstallationError
from flowcore.installation import cache
from flowcore.installation.jars import jars
from tests.unit.installation.stand_ins import IVY, JavaHome


@pytest.mark.parametrize("level", [0, 1, 2, 3], ids=["cache", "jars", "version", "configuration"])
def test_cache_that_others_may_write_is_refused(
    java_home: JavaHome, monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    """Others who write there could choose the code that Spark runs."""
    monkeypatch.setenv("JAVA_HOME", str(java_home("17.0.1", IVY)))
    folder = jars("connector")[0].parent
    (folder, *folder.parents)[3 - level].chmod(0o775)

    with pytest.raises(InstallationError, match=r"can be written by others \(mode 775\).* chmod -R go-w "):
        jars("connector")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_cache_of_another_user_is_refused(java_home: JavaHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root does not run what a user has put there."""
    monkeypatch.setenv("JAVA_HOME", str(java_home("17.0.1", IVY)))
    os.chown(jars("connector")[0], 12_345, -1)

    with pytest.raises(InstallationError, match=r"belongs to user 12345: .* sudo chown -R 0 "):
        jars("connector")


def test_cache_is_the_users_whatever_the_umask(java_home: JavaHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """A umask that lets the group write does not let it write here."""
    monkeypatch.setenv("JAVA_HOME", str(java_home("17.0.1", IVY)))
    before = os.umask(0)
    try:
        assert len(jars("connector")) == 1
    finally:
        os.umask(before)


def test_cache_folder_that_cannot_be_written_is_named(
    tmp_path: Path, java_home: JavaHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the folder and the setting that moves it."""
    monkeypatch.setenv("JAVA_HOME", str(java_home("17.0.1", IVY)))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLOWCORE_CACHE", str(tmp_path / "file"))

    with pytest.raises(InstallationError, match=r"file/jars cannot be written .*FLOWCORE_CACHE"):
        jars("connector")


def test_cache_folder_is_chosen_by_the_first_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLOWCORE_CACHE wins over XDG_CACHE_HOME, which wins over the home folder."""
    monkeypatch.setenv("FLOWCORE_CACHE", "/chosen")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache.cache_folder() == Path("/chosen")
    monkeypatch.delenv("FLOWCORE_CACHE")
    assert cache.cache_folder() == Path("/xdg/flowcore")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_folder() == Path.home() / ".cache/flowcore"


def test_second_process_says_that_it_waits_for_the_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """To make a class archive takes minutes on a busy machine."""
    waiting = threading.Thread(
        target=lambda: contextlib.ExitStack().enter_context(cache.lock_folder(tmp_path))
    )

    with cache.lock_folder(tmp_path):
        waiting.start()
        deadline = time.monotonic() + 60
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.01)
    waiting.join(60)

    assert caplog.messages == [f"waiting for another process that writes to {tmp_path}"]
    assert not waiting.is_alive()
