"""A source returns the columns of its schema, or an error that names the file or the column."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowcore import Csv, Flow, Json, Parquet, from_frame
from flowcore.api.connectors import Source
from flowcore.errors import FlowcoreError, PlanError, RunError

pytestmark = pytest.mark.spark

Run = Callable[..., Any]
Rows = Callable[[str], list[tuple[Any, ...]]]


def _copy(source: Source) -> Flow:
    flow = Flow("f")
    flow.read("in", source).write("out", Parquet("out"))
    return flow


def _write(folder: Path, name: str, text: str) -> None:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / name).write_text(text)


@pytest.mark.parametrize(
    ("source", "files"),
    [
        (
            Csv("in", "id BIGINT, name STRING, at DATE"),
            {"a.csv": "id,name,at\n1,x,2026-01-01\n2,,\n", "b.csv": "id,name,at\n3,z,\n"},
        ),
        (
            Csv("in", "id BIGINT, name STRING, at DATE", header=False, delimiter=";"),
            {"a": "1;x;2026-01-01\n2;;\n3;z;\n"},
        ),
        (
            Csv("in/a.csv", "id BIGINT, name STRING, at DATE", options={"nullValue": "-"}),
            {"a.csv": "id,name,at\n1,x,2026-01-01\n2,-,-\n3,z,-\n"},
        ),
        (
            Json("in", "id BIGINT, name STRING, at DATE"),
            {
                "a.json": '{"id": 1, "name": "x", "at": "2026-01-01", "more": 5}\n{"id": 2}\n',
                "b.json": '{"name": "z", "id": 3}',
            },
        ),
    ],
    ids=["csv", "csv-no-header", "csv-one-file", "json"],
)
def test_text_source_gives_its_rows(
    source: Source, files: dict[str, str], tmp_path: Path, run: Run, rows: Rows
) -> None:
    """All files of the folder are read; an empty or missing field is null."""
    for name, text in files.items():
        _write(tmp_path, name, text)

    run(_copy(source))

    assert rows("select id, name, \"at\"::text from '{dir}/out/*.parquet'") == [
        (1, "x", "2026-01-01"), (2, None, None), (3, "z", None),
    ]  # fmt: skip


def test_parquet_source_gives_the_declared_columns(tmp_path: Path, run: Run, rows: Rows) -> None:
    """Columns have the declared order and types; other columns are not read."""
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"x": [1], "b": [2], "a": [3]}), tmp_path / "in" / "p.parquet")

    run(_copy(Parquet("in", "A DOUBLE, b STRING")))

    assert rows("describe select * from '{dir}/out/*.parquet'") == [
        ("A", "DOUBLE", "YES", None, None, None),
        ("b", "VARCHAR", "YES", None, None, None),
    ]
    assert rows("select * from '{dir}/out/*.parquet'") == [(3.0, "2")]


def test_source_without_rows_gives_an_empty_result(tmp_path: Path, run: Run, rows: Rows) -> None:
    """An empty source has an empty result, not a missing one."""
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "in" / "p.parquet")

    ((manifest, _),) = run(_copy(Parquet("in", "a BIGINT")))

    assert manifest.rejected == {}
    assert rows("select * from '{dir}/out/*.parquet'") == []


MISTAKES: dict[str, tuple[Source, dict[str, str], type[FlowcoreError], str]] = {
    "missing-folder": (
        Csv("nowhere", "a INT"),
        {},
        RunError,
        r"source 'in': .*/nowhere does not exist.*data\.dir",
    ),
    "csv-bad-value": (
        Csv("in", "id BIGINT, name STRING"),
        {"a.csv": "id,name\n1,x\nmany,y\n"},
        RunError,
        r"stage 'out' failed: source 'in': line 3 of .*/a\.csv does not fit .*: many,y: ",
    ),
    "csv-short-line": (
        Csv("in", "id BIGINT, name STRING"),
        {"a.csv": "id,name\n1,x\n2\n"},
        RunError,
        r"stage 'out' failed: source 'in': line 3 of .*/a\.csv does not fit",
    ),
    "csv-long-line": (
        Csv("in", "id BIGINT, name STRING"),
        {"a.csv": "id,name\n1,x\n2,y,z\n"},
        RunError,
        r"stage 'out' failed: source 'in': line 3 of .*/a\.csv does not fit .*: 2,y,z: ",
    ),
    "csv-header": (
        Csv("in", "id BIGINT, name STRING"),
        {"a.csv": "name,id\nx,1\n"},
        RunError,
        r"stage 'out' failed: .*a\.csv",
    ),
    "csv-not-null": (
        Csv("in", "id BIGINT NOT NULL, name STRING"),
        {"a.csv": "id,name\n,x\n"},
        RunError,
        "source 'in': column 'id' is declared NOT NULL",
    ),
    "json-bad-value": (
        Json("in", "id BIGINT"),
        {"a b.json": '{"id": 1}\n{"id": "many"}\n'},
        RunError,
        r"stage 'out' failed: source 'in': line 2 of .*/a b\.json does not fit .*many",
    ),
    "json-number-of-days": (
        Json("in", "id BIGINT, day DATE"),
        {"a.json": '{"id": 1, "day": "2026-01-01"}\n{"id": 2, "day": "5"}\n'},
        RunError,
        r"stage 'out' failed: source 'in': line 2 of .*/a\.json does not fit",
    ),
    "json-time-in-a-date": (
        Json("in", "id BIGINT, day DATE"),
        {"a.json": '{"id": 1, "day": "2026-01-01"}\n{"id": 2, "day": "2026-01-01T23:30:00-05:00"}\n'},
        RunError,
        r"stage 'out' failed: source 'in': line 2 of .*/a\.json does not fit",
    ),
    "csv-time-in-a-date": (
        Csv("in", "id BIGINT, day DATE"),
        {"a.csv": "id,day\n1,2026-01-01\n2,2026-01-01T23:30:00-05:00\n"},
        RunError,
        r"stage 'out' failed: source 'in': line 3 of .*/a\.csv does not fit",
    ),
    "json-tinyint": (
        Json("in", "id BIGINT, t TINYINT"),
        {"a.json": '{"id": -1, "t": -128}\n{"id": 1, "t": 127}\n{"id": 2}\n{"id": 3, "t": 200}\n'},
        RunError,
        r"source 'in': column 't' is declared TINYINT and holds 200",
    ),
    "json-garbage": (
        Json("in", "id BIGINT"),
        {"a.json": '{"id": 1}\ngarbage\n'},
        RunError,
        r"stage 'out' failed: source 'in': line 2 of .*/a\.json does not fit .*garbage",
    ),
    "json-not-null": (
        Json("in", "id BIGINT NOT NULL"),
        {"a.json": "{}"},
        RunError,
        "source 'in': column 'id' is declared NOT NULL",
    ),
    "frame-not-null": (
        from_frame(lambda spark: spark.sql("select cast(null as int) as id"), "id INT NOT NULL"),
        {},
        RunError,
        "source 'in': column 'id' is declared NOT NULL",
    ),
    "parquet-garbage": (Parquet("in", "id BIGINT"), {"a.parquet": "garbage"}, FlowcoreError, r"a\.parquet"),
    "parquet-empty-folder": (Parquet("in", "id BIGINT"), {"_SUCCESS": ""}, PlanError, "'in'.*[Pp]arquet"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_source_that_does_not_fit_its_schema_is_an_error(
    case: str, tmp_path: Path, run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    """A short message names the place and the reason, without a JVM trace; nothing is written."""
    source, files, kind, message = MISTAKES[case]
    for name, text in files.items():
        _write(tmp_path, name, text)

    with pytest.raises(kind, match=message) as caught:
        run(_copy(source))

    text = str(caught.value)
    assert "\n" not in text
    assert "org.apache" not in text
    assert "\tat " not in text
    assert not (tmp_path / "out").exists()
    assert "\tat " not in capfd.readouterr().err


def test_parquet_source_names_a_missing_column(tmp_path: Path, run: Run) -> None:
    """The message lists the declared columns and the columns of the file."""
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"id": [1], "prise": [2.0]}), tmp_path / "in" / "p.parquet")

    with pytest.raises(PlanError, match=r"source 'in' declares the column 'price', and in has id, prise: "):
        run(_copy(Parquet("in", "id BIGINT, price DOUBLE")))


def test_parquet_source_refuses_a_value_that_its_type_cannot_hold(tmp_path: Path, run: Run) -> None:
    """A cast that loses digits fails instead of writing a null."""
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"id": ["1", "many"]}), tmp_path / "in" / "p.parquet")

    with pytest.raises(RunError, match=r"stage 'out' failed: .*many"):
        run(_copy(Parquet("in", "id BIGINT")))


def test_json_written_and_read_again_is_the_same(tmp_path: Path, run: Run, rows: Rows) -> None:
    """Nested values, unicode and nulls survive a JSON sink and source."""
    schema = "id BIGINT, `na me` STRING, tags ARRAY<STRING>, at STRUCT<x: INT, `y z`: DOUBLE>, seen TIMESTAMP"
    at = {"x": 1, "y z": 0.5}
    values = [
        {"id": 1, "na me": "é😀\"'", "tags": ["a", None], "at": at, "seen": "2026-01-01T00:00:00Z"},
        {"id": 2, "tags": []},
    ]  # fmt: skip
    _write(tmp_path, "a.json", "\n".join(map(json.dumps, values)))
    flow = Flow("f")
    flow.read("in", Json("in", schema)).write("copy", Json("copied"))
    run(flow)

    again = Flow("g")
    again.read("in", Json("copied", schema)).write("out", Parquet("out"))
    run(again)

    assert rows(
        'select id, "na me", tags, "at".x, "at"."y z", epoch_ms(seen) from \'{dir}/out/*.parquet\''
    ) == [
        (1, "é😀\"'", ["a", None], 1, 0.5, 1767225600000),
        (2, None, [], None, None, None),
    ]


def test_text_sinks_keep_spaces_and_microseconds(tmp_path: Path, run: Run) -> None:
    """Spark's writers cut both by default."""
    row = [" x ", "2026-01-01T00:00:00.000001Z", "2026-01-01T00:00:00.000002"]
    _write(tmp_path, "a.csv", f"name,at,local\n{','.join(row)}\n")
    flow = Flow("f")
    texts = flow.read("in", Csv("in", "name STRING, at TIMESTAMP, local TIMESTAMP_NTZ"))
    texts.write("csv", Csv("csv"))
    texts.write("json", Json("json"))

    run(flow)

    (table,), (lines,) = (tmp_path.glob(f"{kind}/*.{kind}") for kind in ("csv", "json"))
    assert [*csv.reader(table.read_text().splitlines())] == [["name", "at", "local"], row]
    assert [*json.loads(lines.read_text()).values()] == row


TEXTS = [
    "", None, " ", " x\t", '"', '""', 'a"b', '"a,b"', "\\", "a\\", "a\\,b", '\\"', 'a,"b"\\', '\\\\"x,',
    "\\N", "#x", "'", "null", "\x00", "\ufeff", "a\x0bb\x85c\u2028d", ",", ";", "ż😀",
]  # fmt: skip


def _texts(texts: list[str | None], column: str = "name STRING") -> Source:
    rows = [*enumerate(texts)]
    return from_frame(lambda spark: spark.createDataFrame(rows, f"id INT, {column}"), f"id INT, {column}")


def _csv_and_back(run: Run, rows: Rows, texts: list[str | None], **options: Any) -> list[str | None]:
    flow = Flow("f")
    flow.read("made", _texts(texts)).write("csv", Csv("csv", **options))
    run(flow, refresh=True)
    again = Flow("g")
    again.read("csv", Csv("csv", "id INT, name STRING", **options)).write("out", Parquet("out"))
    run(again)
    return [name for _, name in rows("select id, name from '{dir}/out/*.parquet'")]


@pytest.mark.parametrize("options", [{}, {"delimiter": ";", "header": False}], ids=["commas", "semicolons"])
def test_csv_written_and_read_again_is_the_same(options: dict[str, Any], run: Run, rows: Rows) -> None:
    """An empty text is not a null, and whatever is in a text is not part of the line."""
    assert _csv_and_back(run, rows, TEXTS, **options) == TEXTS


def test_csv_has_line_breaks_in_texts_if_both_sides_say_so(run: Run, rows: Rows) -> None:
    """A reader of lines would take the rest of such a text for another row, without an error."""
    breaks = ["a\nb", "c\r\nd", "e\rf"]
    for each in breaks:
        with pytest.raises(RunError, match=r"column 'name' of the CSV files in csv holds a line break"):
            _csv_and_back(run, rows, ["x", each])

    assert _csv_and_back(run, rows, [*breaks, *TEXTS], options={"multiLine": "true"}) == [*breaks, *TEXTS]


def test_csv_of_one_column_has_no_nulls(run: Run) -> None:
    """Each would be an empty line, which Spark does not even write."""
    flow = Flow("f")
    flow.read("made", _texts(["x", None])).select("name").write("csv", Csv("csv"))

    with pytest.raises(RunError, match=r"column 'name' of the CSV files in csv is null, .* no other column"):
        run(flow)
