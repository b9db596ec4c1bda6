"""A history is on disk whole or not at all, and is written once."""

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
def test_history_is_what_the_generator_says(tmp_path: Path, events: int) -> None:
    """The files hold every event of the range once, in order."""
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
    """A second demo does not write what is there."""
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
    """Nothing of an earlier history stays."""
    write_history(CONFIG, 5_000, tmp_path)

    write_history(config, events, tmp_path)

    assert read(tmp_path / "bids").equals(bids(config, 0, events))


def test_history_stays_invisible_until_it_is_whole(tmp_path: Path) -> None:
    """A writer that dies between two files leaves no table, and the next one starts afresh."""

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
    """Somebody's files are not deleted because they lie in a folder of that name."""
    precious = tmp_path / "bids" / "precious.txt"
    precious.parent.mkdir()
    precious.write_text("keep")

    with pytest.raises(ConfigurationError, match=r"bids holds files .* would be deleted"):
        write_history(CONFIG, 1_000, tmp_path)

    assert precious.read_text() == "keep"


def test_history_tells_how_far_it_is(tmp_path: Path) -> None:
    """Progress goes up to the number of rows of each table."""
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
