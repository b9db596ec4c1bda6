"""A history is written once, and is complete on disk or absent."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from flowcore.errors import ConfigurationError
from pipelines.nexmark import history
from pipelines.nexmark.generator import NexmarkConfig, auctions, bids, persons
from pipelines.nexmark.history import write_history

CONFIG = NexmarkConfig()
GENERATORS = {"persons": persons, "auctions": auctions, "bids": bids}


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "ROWS_PER_FILE", 1_000)


@pytest.mark.parametrize("events", [0, 49, 12_345], ids=["none", "part-of-a-cycle", "many-files"])
def test_history_has_the_events_of_the_generator(tmp_path: Path, events: int) -> None:
    """The files have every event of the range once, in order."""
    counts = write_history(CONFIG, events, tmp_path)

    for name, generate in GENERATORS.items():
        whole = generate(CONFIG, 0, events)
        assert read(tmp_path / name).equals(whole)
        assert counts[name] == whole.num_rows


def test_history_is_in_several_files(tmp_path: Path) -> None:
    """Spark reads files in parallel."""
    write_history(CONFIG, 12_345, tmp_path)

    assert len(list((tmp_path / "bids").glob("*.parquet"))) == 12


def test_history_is_left_alone_if_it_is_the_same(tmp_path: Path) -> None:
    """A second demo does not write existing data."""
    write_history(CONFIG, 1_000, tmp_path)
    before = (tmp_path / "bids").stat().st_ino

    write_history(CONFIG, 1_000, tmp_path)

    assert (tmp_path / "bids").stat().st_ino == before


@pytest.mark.parametrize(
    ("config", "events"),
    [(NexmarkConfig(seed=2), 1_000), (CONFIG, 500)],
    ids=["other-seed", "other-length"],
)
def test_history_is_replaced_if_it_is_another(tmp_path: Path, config: NexmarkConfig, events: int) -> None:
    """No data of an earlier history remains."""
    write_history(CONFIG, 5_000, tmp_path)

    write_history(config, events, tmp_path)

    assert read(tmp_path / "bids").equals(bids(config, 0, events))


def test_history_stays_invisible_until_it_is_whole(tmp_path: Path) -> None:
    """A writer killed between two files leaves no table, and the next one starts again."""

    def die(table: str, rows: int, _total: int) -> None:
        if table == "bids" and rows > 2_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_history(CONFIG, 10_000, tmp_path, die)
    assert not (tmp_path / "bids").exists()

    write_history(CONFIG, 3_000, tmp_path)
    assert read(tmp_path / "bids").equals(bids(CONFIG, 0, 3_000))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["auctions", "bids", "persons"]


def test_history_refuses_a_folder_that_is_not_its_own(tmp_path: Path) -> None:
    """Files of another owner in a folder of that name are not deleted."""
    precious = tmp_path / "bids" / "precious.txt"
    precious.parent.mkdir()
    precious.write_text("keep")

    with pytest.raises(ConfigurationError, match=r"bids holds files .* would be deleted"):
        write_history(CONFIG, 1_000, tmp_path)

    assert precious.read_text() == "keep"


def test_history_reports_its_progress(tmp_path: Path) -> None:
    """Progress rises to the number of rows of each table."""
    seen: list[tuple[str, int, int]] = []

    counts = write_history(CONFIG, 5_000, tmp_path, lambda *step: seen.append(step))

    for name, rows in counts.items():
        done = [step[1] for step in seen if step[0] == name]
        assert done == sorted(done)
        assert done[-1] == rows
    assert all(total == counts[name] for name, _, total in seen)


def read(folder: Path) -> pa.Table:
    files = sorted(str(path) for path in folder.glob("*.parquet"))
    return ds.dataset(files, format="parquet").to_table().combine_chunks()
