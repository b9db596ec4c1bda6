"""A manifest makes a result visible at once, and detects every file that has changed since the commit."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowcore.errors import ResultError
from flowcore.spark.results.manifest import Manifest, Table


def _manifest(root: Path, version: str = "v1") -> Manifest:
    """A result of two files with three rows."""
    folder = root / version / "sales"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1, 2]}), folder / "part-0.parquet")
    pq.write_table(pa.table({"a": [3]}), folder / "part-1.parquet")
    table = Table.scan(folder, (("a", "bigint"),), root)
    return Manifest(
        flow="f", stage="sales", version=version, created_ms=1, duration_ms=2, fingerprint="x",
        sources={"in": "3 files"}, tables={"sales": table}, rejected={"in": 0},
    )  # fmt: skip


def test_manifest_describes_the_files(tmp_path: Path) -> None:
    """Rows, sizes and digests are those of the files; paths are relative to the manifest's folder."""
    table = _manifest(tmp_path).tables["sales"]

    assert [(file.path, file.rows) for file in table.files] == [
        ("v1/sales/part-0.parquet", 2), ("v1/sales/part-1.parquet", 1),
    ]  # fmt: skip
    assert table.rows == 3
    assert all(file.bytes == (tmp_path / file.path).stat().st_size for file in table.files)


def test_manifest_round_trips_through_its_file(tmp_path: Path) -> None:
    """A manifest reads back as written."""
    manifest = _manifest(tmp_path)

    manifest.write(tmp_path / "manifest.json")

    assert Manifest.read(tmp_path / "manifest.json") == manifest
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["manifest.json"]


def test_manifest_that_is_not_finished_is_invisible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If writing fails, readers still have the whole old manifest."""
    path = tmp_path / "manifest.json"
    old = _manifest(tmp_path)
    old.write(path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        _manifest(tmp_path, "v2").write(path)

    assert Manifest.read(path) == old


def test_manifest_digest_is_of_the_content(tmp_path: Path) -> None:
    """Equal rows in two versions have equal digests, other rows have another digest."""
    first, second = _manifest(tmp_path, "v1"), _manifest(tmp_path, "v2")
    assert first.tables["sales"].digest == second.tables["sales"].digest

    pq.write_table(pa.table({"a": [4]}), tmp_path / "v2" / "sales" / "part-1.parquet")
    third = Table.scan(tmp_path / "v2" / "sales", (("a", "bigint"),), tmp_path)
    assert third.digest != first.tables["sales"].digest


def test_manifest_check_passes_what_was_committed(tmp_path: Path) -> None:
    """Unchanged files pass; a file that the manifest does not name is ignored."""
    manifest = _manifest(tmp_path)
    (tmp_path / "v1" / "sales" / "_SUCCESS").touch()

    manifest.check(tmp_path)


@pytest.mark.parametrize("damage", ["missing", "longer", "other"])
def test_manifest_check_names_the_file_that_changed(tmp_path: Path, damage: str) -> None:
    """The file is missing, has another size, or has one other byte."""
    manifest = _manifest(tmp_path)
    path = tmp_path / "v1" / "sales" / "part-1.parquet"
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content + b"x" if damage == "longer" else content[:-9] + b"x" + content[-8:])
    wrong = {"missing": "is missing", "longer": "bytes, not the", "other": "has other bytes"}[damage]

    with pytest.raises(ResultError, match=f"{path} .*{wrong}.*--refresh"):
        manifest.check(tmp_path)


def test_manifest_of_a_later_format_is_refused(tmp_path: Path) -> None:
    """Its files would be misread."""
    path = tmp_path / "manifest.json"
    _manifest(tmp_path).write(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))

    with pytest.raises(ResultError, match=r"has format 99, this flowcore reads up to \d"):
        Manifest.read(path)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "null", "{}", '{"format": 1}', '{"format": 1, "tables": {}}',
     '{"format": 1, "tables": {"a": {"files": 3}}}', '{"format": 1, "tables": []}'],
)  # fmt: skip
def test_file_that_is_not_a_manifest_is_refused(tmp_path: Path, text: str) -> None:
    """Whatever the file contains, the message names it and says what to do."""
    path = tmp_path / "manifest.json"
    path.write_text(text)

    with pytest.raises(ResultError, match=f"{path} cannot be read.*delete it"):
        Manifest.read(path)


def test_manifest_cut_anywhere_is_refused(tmp_path: Path) -> None:
    """No part of a manifest is accepted as a manifest."""
    path = tmp_path / "manifest.json"
    replace(_manifest(tmp_path), flow="é").write(path)
    content = path.read_bytes()

    for length in range(0, len(content) - 1, 37):
        path.write_bytes(content[:length])
        with pytest.raises(ResultError):
            Manifest.read(path)


def test_manifest_of_the_first_format_is_read(tmp_path: Path) -> None:
    """It has the same fields."""
    path = tmp_path / "manifest.json"
    manifest = _manifest(tmp_path)
    manifest.write(path)
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, "format": 1}))

    assert Manifest.read(path) == manifest
