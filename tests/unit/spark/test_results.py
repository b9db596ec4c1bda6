"""A result is visible when its manifest names it; a stage has one run at a time; unused versions go."""

import shutil
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowcore.errors import ResultError, RunError
from flowcore.spark.results.manifest import Manifest, Table
from flowcore.spark.results.store import ResultStore, StageFolder


@pytest.fixture
def store(tmp_path: Path) -> ResultStore:
    return ResultStore(tmp_path, "f")


def _commit(folder: StageFolder) -> str:
    with folder.fresh_version() as (version, path):
        (path / "sales").mkdir(parents=True)
        pq.write_table(pa.table({"a": [1]}), path / "sales" / "part-0.parquet")
        table = Table.scan(path / "sales", (("a", "bigint"),), folder.root)
        Manifest(
            flow="f", stage=folder.stage, version=version, created_ms=1, duration_ms=1, fingerprint="x",
            sources={}, tables={"sales": table}, rejected={},
        ).write(folder.manifest_path)  # fmt: skip
    return version


def _versions(folder: StageFolder) -> set[str]:
    return {path.name for path in folder.root.iterdir() if path.is_dir() and path.name != "pins"}


def test_result_that_was_never_committed_is_missing(store: ResultStore) -> None:
    """The message says what to run."""
    assert store.folder("sales").manifest() is None
    with pytest.raises(ResultError, match="stage 'sales' of flow 'f' has no committed result"):
        store.require("sales")


def test_result_is_found_and_checked(store: ResultStore) -> None:
    """The committed result is read; damage is an error, not a wrong answer."""
    version = _commit(store.folder("sales"))

    manifest = store.require("sales")
    assert manifest.version == version

    (store.folder("sales").root / manifest.tables["sales"].files[0].path).unlink()
    with pytest.raises(ResultError, match="is missing"):
        store.require("sales")


def test_result_of_a_failed_run_is_invisible(store: ResultStore) -> None:
    """Its files are removed, the earlier result stays."""
    folder = store.folder("sales")
    version = _commit(folder)

    def fail() -> None:
        with folder.fresh_version() as (_, path):
            path.mkdir()
            (path / "half.parquet").touch()
            1 / 0  # noqa: B018 - the failure

    with pytest.raises(ZeroDivisionError):
        fail()

    assert store.require("sales").version == version
    assert _versions(folder) == {version}


def test_result_that_a_killed_run_left_is_removed_by_the_next(store: ResultStore) -> None:
    """No manifest names its folder."""
    folder = store.folder("sales")
    (folder.root / "20200101T000000-killed" / "sales").mkdir(parents=True)
    (folder.root / ".manifest.json.20200101T000000-killed").write_text("{")
    assert folder.manifest() is None

    version = _commit(folder)

    assert {path.name for path in folder.root.iterdir()} == {version, "manifest.json", ".lock"}


def test_run_waits_while_unused_versions_are_removed(
    store: ResultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live query removes what it joined before, which may be many files."""
    folder = store.folder("sales")
    folder.pin("query", _commit(folder))
    _commit(folder)
    folder.unpin("query")
    removing = threading.Event()

    def remove(*_: object, **__: object) -> None:
        removing.set()
        time.sleep(0.5)

    with monkeypatch.context() as slow:
        slow.setattr(shutil, "rmtree", remove)
        thread = threading.Thread(target=folder.remove_unused)
        thread.start()
        assert removing.wait(60)
        with store.folder("sales").fresh_version() as (version, _):
            assert version
        thread.join()


def test_result_has_one_run_at_a_time(store: ResultStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run is refused and changes nothing; after the first has ended, another may run."""
    monkeypatch.setattr("flowcore.spark.results.store._WAIT_S", 0.1)
    folder = store.folder("sales")

    with folder.fresh_version() as (_, path):
        path.mkdir()
        with (
            pytest.raises(RunError, match="stage 'sales' is being run by another process"),
            store.folder("sales").fresh_version(),
        ):
            pytest.fail("two runs of one stage")
        assert path.is_dir()
        with store.folder("other").fresh_version():
            pass

    assert _commit(folder)


def test_unused_result_versions_are_removed(store: ResultStore) -> None:
    """The newest version and versions pinned by a live query are kept."""
    folder = store.folder("sales")
    first = _commit(folder)
    folder.pin("query", first)
    second = _commit(folder)
    third = _commit(folder)
    assert _versions(folder) == {first, third}
    assert second not in _versions(folder)

    folder.pin("query", third)
    fourth = _commit(folder)
    assert _versions(folder) == {third, fourth}


def test_versions_of_queries_that_are_gone_are_removed(store: ResultStore) -> None:
    """Its plan file was removed; a query that starts for the first time has the pin of its next version."""
    checkpoints = store.state_dir / "f" / "checkpoints"
    folder = store.folder("sales")
    versions = {}
    for reader in ("gone", "kept", ".next-starting", "starting"):
        versions[reader] = _commit(folder)
        folder.pin(reader, versions[reader])
    newest = _commit(folder)
    assert _versions(folder) == {newest, *versions.values()}  # the folder of the checkpoints may be away

    checkpoints.mkdir()
    (checkpoints / "kept.plan.json").touch()
    folder.remove_unused()
    assert _versions(folder) == {newest, *versions.values()} - {versions["gone"]}

    (checkpoints / "starting.plan.json").touch()
    folder.unpin(".next-starting")
    folder.remove_unused()
    assert _versions(folder) == {newest, versions["kept"], versions["starting"]}


def test_result_versions_differ(store: ResultStore) -> None:
    """Two commits in one second are two versions."""
    assert _commit(store.folder("sales")) != _commit(store.folder("sales"))


def test_results_of_a_damaged_manifest_can_be_made_again(store: ResultStore) -> None:
    """The error about the manifest says how: delete it and run the stage again."""
    folder = store.folder("sales")
    _commit(folder)
    folder.manifest_path.write_text("{")

    with pytest.raises(ZeroDivisionError), folder.fresh_version():
        1 / 0  # noqa: B018 - this failure must be reported
    version = _commit(folder)

    assert store.require("sales").version == version


def test_result_versions_are_removed_when_the_last_reader_unpins_them(store: ResultStore) -> None:
    """At once, but not while the stage runs, since no manifest names its new version yet."""
    folder = store.folder("sales")
    first = _commit(folder)
    folder.pin("query", first)
    folder.pin(".next-query", first)
    second = _commit(folder)
    folder.pin("query", second)
    folder.remove_unused()
    assert _versions(folder) == {first, second}

    folder.unpin(".next-query")
    with folder.fresh_version() as (third, path):
        path.mkdir()
        folder.remove_unused()
        assert _versions(folder) == {first, second, third}
    folder.remove_unused()

    assert _versions(folder) == {second}
