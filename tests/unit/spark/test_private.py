"""Files of a run are its user's only, and a state folder that others can change is refused."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowcore import ownership
from flowcore.errors import SettingsError, StateError
from flowcore.settings import Settings
from flowcore.spark.run import private
from flowcore.spark.run.private import prepare_state_folder, private_files


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("text", "file", "folder"), [("077", 0o600, 0o700), ("027", 0o640, 0o750)])
def test_files_have_the_permissions_that_the_setting_leaves(
    text: str, file: int, folder: int, tmp_path: Path
) -> None:
    """The umask of before is back at the end."""
    settings = Settings.of({"files.umask": text}, environment={})
    before = os.umask(0o022)
    try:
        with private_files(settings.umask):
            (tmp_path / "folder").mkdir()
            (tmp_path / "file").touch()
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)

    assert (_mode(tmp_path / "file"), _mode(tmp_path / "folder")) == (file, folder)


@pytest.mark.parametrize("text", ["000", "70", "777", "007", 77, "abc"])
def test_umask_lets_no_other_user_write(text: object) -> None:
    """It takes no permission from the user of the run."""
    with pytest.raises(SettingsError, match=r"files\.umask"):
        Settings.of({"files.umask": text}, environment={})


def test_state_folder_is_made_for_its_user_only(tmp_path: Path) -> None:
    """This holds for any umask; a folder that exists keeps its permissions to read."""
    before = os.umask(0)
    try:
        prepare_state_folder(tmp_path / "state")
    finally:
        os.umask(before)
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown").chmod(0o755)
    prepare_state_folder(tmp_path / "shown")

    assert (_mode(tmp_path / "state"), _mode(tmp_path / "shown")) == (0o700, 0o755)


@pytest.mark.parametrize("inner", ["", "flow"])
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o722])
def test_state_folder_that_others_can_write_is_refused(
    inner: str, mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the command that helps."""
    folder = tmp_path / "state" / inner
    folder.mkdir(parents=True)
    folder.chmod(mode)
    if mode != 0o777:
        monkeypatch.setattr(ownership, "is_own_group", lambda _: False)
        monkeypatch.setattr(private, "is_own_group", lambda _: False)

    with pytest.raises(StateError, match=rf"has mode {mode:o}, .*chmod -R go-w {tmp_path / 'state'}"):
        prepare_state_folder(tmp_path / "state")


@pytest.mark.parametrize("inner", ["spark.log", "flow/checkpoints/query/offsets/0"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_content_that_others_can_write_is_refused(inner: str, kind: str, tmp_path: Path) -> None:
    """At any depth, if they can enter the state folder; behind a folder of mode 0700 nothing is walked."""
    state, found = tmp_path / "state", tmp_path / "state" / inner
    found.parent.mkdir(parents=True)
    found.touch() if kind == "file" else found.mkdir()
    for folder in (state, *found.parents[: len(found.parents) - len(state.parents)]):
        folder.chmod(0o755)
    found.chmod(0o666 if kind == "file" else 0o777)

    with pytest.raises(
        StateError, match=rf"what is in the state folder: {found} has mode .*chmod -R go-w {state};"
    ):
        prepare_state_folder(state)
    state.chmod(0o700)
    if kind == "file" or found.parent != state:
        prepare_state_folder(state)


def test_state_folder_that_others_can_read_is_accepted(tmp_path: Path) -> None:
    """A link in it is not followed: what it leads to is not state."""
    (tmp_path / "state/flow/checkpoints").mkdir(parents=True)
    (tmp_path / "state/flow/checkpoints/file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "state/flow/link").symlink_to(tmp_path / "open")
    (tmp_path / "state/flow/broken").symlink_to(tmp_path / "nothing")
    (tmp_path / "state").chmod(0o755)

    prepare_state_folder(tmp_path / "state")


@pytest.mark.parametrize(
    "place",
    ["flow", "flow/checkpoints", "flow/checkpoints/query", "flow/results/stage", "flow/progress"],
)
def test_folder_of_state_that_others_can_write_is_refused_behind_a_link(place: str, tmp_path: Path) -> None:
    """An operator may have moved it to another disk, where the mode of the state folder protects nothing."""
    state, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    (state / place).parent.mkdir(parents=True)
    state.chmod(0o700)
    elsewhere.mkdir()
    elsewhere.chmod(0o755)
    (elsewhere / "file").touch(mode=0o600)
    (state / place).symlink_to(elsewhere)
    prepare_state_folder(state)

    (elsewhere / "file").chmod(0o666)
    with pytest.raises(StateError, match=rf"elsewhere/file has mode 666, .*chmod -R go-w {elsewhere};"):
        prepare_state_folder(state)
    elsewhere.chmod(0o777)
    with pytest.raises(StateError, match=rf"state/{place} has mode 777, .*chmod -R go-w {elsewhere};"):
        prepare_state_folder(state)


def test_links_are_followed_where_state_is_only(tmp_path: Path) -> None:
    """A flow behind a link has links of its own; a loop, and what is beside the state, is nobody's state."""
    for each in ("state", "disk", "open"):
        (tmp_path / each).mkdir(mode=0o700)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "state/flow").symlink_to("../disk/.")
    (tmp_path / "state/loop").symlink_to("loop")
    (tmp_path / "disk/beside").symlink_to(tmp_path / "open")
    prepare_state_folder(tmp_path / "state")

    (tmp_path / "disk/checkpoints").symlink_to("../open")
    with pytest.raises(StateError, match=r"state/flow/checkpoints has mode 777"):
        prepare_state_folder(tmp_path / "state")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("kind", ["file", "link"])
def test_content_of_another_user_is_refused(kind: str, tmp_path: Path) -> None:
    """It was put there while others could write the folder."""
    found = tmp_path / "state/flow/results/manifest.json"
    found.parent.mkdir(parents=True)
    found.touch() if kind == "file" else found.symlink_to("/etc/hostname")
    os.chown(found, 4711, -1, follow_symlinks=False)
    (tmp_path / "state").chmod(0o755)

    with pytest.raises(StateError, match=rf"{found} is owned by user 4711"):
        prepare_state_folder(tmp_path / "state")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
@pytest.mark.parametrize("inner", ["", "flow"])
def test_state_folder_of_another_user_is_refused(inner: str, tmp_path: Path) -> None:
    """That user could change the state."""
    folder = tmp_path / "state" / inner
    folder.mkdir(parents=True)
    os.chown(folder, 4711, -1)

    with pytest.raises(StateError, match=rf"{folder} is owned by user 4711, .*chown -R {os.geteuid()}"):
        prepare_state_folder(tmp_path / "state")


def test_state_folder_of_the_users_own_group_is_accepted(tmp_path: Path) -> None:
    """Volumes of containers, and users with a group of their own, have such folders."""
    (tmp_path / "state").mkdir()
    os.chown(tmp_path / "state", -1, os.getegid())
    (tmp_path / "state").chmod(0o770)

    if os.getegid() != os.geteuid():
        pytest.skip("the user's group has another number")
    prepare_state_folder(tmp_path / "state")


@pytest.mark.parametrize(
    ("named", "primary"), [([], "root"), (["me", "root"], "me"), (["me", "other"], "me"), ([], "other")]
)
@pytest.mark.parametrize("owner", ["user", "root"])
def test_group_with_another_member_is_not_the_users_own(
    owner: str, named: list[str], primary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All members can write what the group can: those that it names, and those whose own group it is."""
    prepare_state_folder(tmp_path / "state")  # membership is asked once a start
    group = 4712
    monkeypatch.setattr(os, "geteuid", lambda: group if owner == "user" else 4714)
    accounts = [
        SimpleNamespace(pw_name=name, pw_uid=uid, pw_gid=group if name == primary else 4713)
        for name, uid in (("root", 0), ("me", os.geteuid()), ("other", 4711))
    ]
    monkeypatch.setattr(os, "getgroups", lambda: [group])
    monkeypatch.setattr(pwd, "getpwall", lambda: accounts)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {each.pw_uid: each for each in accounts}[uid])
    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_mem=named))
    found: Any = SimpleNamespace(st_uid=0 if owner == "root" else os.geteuid(), st_gid=group)

    assert ownership.is_own_group(found) is ("other" not in {primary, *named})
    ownership._other_members.cache_clear()


def test_group_of_root_has_no_other_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some systems put accounts such as halt there; users of containers without an account belong to it."""
    halt = SimpleNamespace(pw_name="halt", pw_uid=7, pw_gid=0)
    monkeypatch.setattr(pwd, "getpwall", lambda: [halt])

    ownership._other_members.cache_clear()
    assert ownership._other_members(0) == frozenset()
    ownership._other_members.cache_clear()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another group")
def test_state_folder_of_a_group_with_another_member_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of root and the group staff is not the user's alone, though the user is in that group."""
    (tmp_path / "state").mkdir()
    os.chown(tmp_path / "state", -1, 4712)
    (tmp_path / "state").chmod(0o2775)
    monkeypatch.setattr(os, "getgroups", lambda: [4712])
    prepare_state_folder(tmp_path / "state")

    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_mem=["other"]))
    with pytest.raises(StateError, match=r"state has mode 2775, so that others can write it"):
        prepare_state_folder(tmp_path / "state")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
@pytest.mark.parametrize("inner", ["", "flows"])
def test_state_folder_behind_a_link_of_another_user_is_refused(inner: str, tmp_path: Path) -> None:
    """In a folder such as /tmp anyone may have put it there: what it leads to would be written."""
    (tmp_path / "own" / inner).mkdir(parents=True, exist_ok=True)
    (tmp_path / "state").symlink_to(tmp_path / "own")
    prepare_state_folder(tmp_path / "state" / inner)
    os.chown(tmp_path / "state", 4711, -1, follow_symlinks=False)

    with pytest.raises(StateError, match=r"behind the link .* of user 4711"):
        prepare_state_folder(tmp_path / "state" / inner)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
@pytest.mark.parametrize("own", ["state", "state/flow", "state/flow/checkpoints"])
def test_link_of_another_user_behind_an_own_link_is_refused(own: str, tmp_path: Path) -> None:
    """That user chooses where the own link leads to."""
    (tmp_path / "disk/moved").mkdir(parents=True)
    (tmp_path / "there").symlink_to("disk")
    (tmp_path / own).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / own).symlink_to(tmp_path / "there/moved")
    (tmp_path / "disk").chmod(0o700)
    (tmp_path / "disk/moved").chmod(0o700)
    prepare_state_folder(tmp_path / "state")
    os.chown(tmp_path / "there", 4711, -1, follow_symlinks=False)

    with pytest.raises(StateError, match=rf"{own} is behind the link {tmp_path / 'there'} of user 4711"):
        prepare_state_folder(tmp_path / "state")
