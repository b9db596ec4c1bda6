"""`flowcore plan` prints the plan as text, diagram or JSON, and starts no JVM."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flowcore.cli.main import main
from flowcore.cli.plan import plan
from flowcore.settings import Settings
from flowcore.spark.results.manifest import DataFile, Manifest, Table
from flowcore.spark.results.store import ResultStore

FLOW = """
from flowcore import Flow, KafkaTopic, RichFunction

class Lookup(RichFunction):
    def __call__(self, record):
        return record

flow = Flow("shop")
bids = flow.read("bids", KafkaTopic("bids", schema="shop STRING, price DOUBLE"))
found = bids.map(Lookup(), schema="shop STRING", name="found")
found.filter(bool, name="kept").write("out", KafkaTopic("out"))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user's module."""
    (tmp_path / "planned_shop.py").write_text(FLOW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def _plan(*arguments: str) -> Result:
    return CliRunner().invoke(plan, ["planned_shop:flow", *arguments])


def test_plan_is_text_unless_asked_otherwise() -> None:
    """The default is short."""
    text, same = _plan().output, _plan("--format", "text").output

    assert text == same
    assert text.startswith("flow shop: 1 stage\n")
    assert "found -> kept: deep because found may use its output records again; to change it" in text
    assert "every decision" not in text


def test_plan_verbose_names_inactive_rules() -> None:
    """Each inactive rule has its reason."""
    text = _plan("--verbose").output

    assert text.startswith(_plan().output.rstrip())
    assert "flush: off because no flush interval is set" in text
    assert "output_value_stored=true" in text


def test_plan_as_json_has_every_decision_with_settings() -> None:
    """The settings affect the plan."""
    (edge,) = (
        each
        for each in json.loads(_plan("--format", "json").output)["parts"][0]["edges"]
        if each["to"] == "kept"
    )
    reused = json.loads(_plan("--format", "json", "--set", "pipeline.object-reuse=true").output)

    assert edge["copy"]["value"] == "deep"
    assert edge["columns"] == ["shop"]
    assert [each["copy"]["value"] for each in reused["parts"][0]["edges"] if each["to"] == "kept"] == [
        "reuse"
    ]


def test_plan_as_mermaid_is_a_flowchart() -> None:
    """The output contains nothing else."""
    lines = _plan("--format", "mermaid").output.splitlines()

    assert lines[0] == "flowchart TD"
    assert 'subgraph p1c1["python chain"]' in [line.strip() for line in lines]


def test_plan_takes_the_modes_of_run() -> None:
    """Auto is the default of both."""
    assert _plan("--mode", "auto").output == _plan().output
    assert "query bids-batches (slice)" in _plan("--mode", "slice").output


def test_plan_tells_a_wrong_flow_from_a_wrong_argument(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A connector of the module has a line in it; a module that does not exist is a wrong argument."""

    def run(flow: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["flowcore", "plan", flow])
        with pytest.raises(SystemExit) as stopped:
            main()
        return stopped.value.code, capsys.readouterr().err

    line = "bids = flow.read('bids', KafkaTopic('bids', 'id INT', on_error='drop'))"
    (folder / "wrong_topic.py").write_text(
        f"from flowcore import Flow, KafkaTopic\nflow = Flow('a')\n{line}\n"
    )
    code, text = run("wrong_topic:flow")
    assert code == 1
    assert text.startswith("error: on_error='drop' of topic 'bids' is not")
    assert text.endswith(f"declared at {folder / 'wrong_topic.py'}, line 3: {line}\n")

    code, text = run("no_such_module:flow")
    assert code == 2
    assert "Usage: flowcore plan" in text
    assert "there is no module 'no_such_module'" in text


@pytest.mark.parametrize("form", ["json", "mermaid"])
def test_plan_refuses_verbose_where_it_changes_nothing(form: str) -> None:
    """The option would be ignored."""
    result = _plan("--verbose", "--format", form)

    assert result.exit_code == 2
    assert f"--format {form}" in result.output


HEAVY = {"pyspark", "numpy", "pandas", "pyarrow", "confluent_kafka", "dagster", "rich", "filelock"}
"""Packages of which each takes a tenth of a second and more to import."""


@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        (["plan", "planned_shop:flow", "--verbose"], HEAVY),
        (["plan", "planned_shop:flow", "--format", "svg"], HEAVY),
        (["--help"], {*HEAVY, "sqlglot", "flowcore.api"}),
    ],
    ids=["text", "svg", "help"],
)
def test_quick_commands_import_nothing_heavy(folder: Path, arguments: list[str], unneeded: set[str]) -> None:
    """So they start no JVM, and answer in less than a third of a second."""
    program = (
        "import sys; from flowcore.cli.main import main; sys.argv = ['flowcore', *sys.argv[1:]]; main(); "
        "print('modules', *sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={"PYTHONPATH": ":".join([str(folder), *sys.path])},
        check=False, capture_output=True, text=True,
    )  # fmt: skip

    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1].startswith("modules ")
    assert unneeded.intersection(found.stdout.splitlines()[-1].split()) == set()


JOINED = """
from flowcore import Flow, KafkaTopic, Parquet

flow = Flow("joined")
bids = flow.read("bids", KafkaTopic("bids", schema="shop STRING"))
shops = flow.read("shops", Parquet("shops", schema="shop STRING, city STRING"))
bids.join(shops, on="shop", name="placed").write("out", KafkaTopic("out"))
"""


def test_plan_knows_the_sizes_of_committed_results(folder: Path) -> None:
    """Without PySpark and Arrow. A manifest that cannot be read says nothing."""
    (folder / "joined_shop.py").write_text(JOINED)
    program = (
        "import sys; from flowcore.cli.plan import plan; "
        "plan(['joined_shop:flow', '--verbose'], standalone_mode=False); "
        f"print({HEAVY!r} & {{*sys.modules}})"
    )

    def planned() -> str:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": ":".join([str(folder), *sys.path])},
            cwd=folder, check=True, capture_output=True, text=True,
        )  # fmt: skip
        assert done.stdout.endswith("\nset()\n")
        return done.stdout

    assert "join: broadcast, if it fits because the size of shops is not known yet" in planned()
    results = ResultStore(Settings().state_dir, "joined").folder("shops")
    results.root.mkdir(parents=True)
    files = tuple(DataFile(f"{number}.parquet", size, 1, "") for number, size in enumerate((5, 200 << 20)))
    manifest = Manifest(
        flow="joined", stage="shops", version="v", created_ms=0, duration_ms=0, fingerprint="", sources={},
        tables={"shops": Table(files, 2, (("shop", "string"), ("city", "string")), "")}, rejected={},
    )  # fmt: skip
    manifest.write(results.manifest_path)
    found = planned()
    assert "query bids (micro-batch" in found
    assert "placed is joined by a shuffle because shops has 209,715,205 bytes, more than 134,217,728" in found
    results.manifest_path.write_text("{")
    assert "join: broadcast, if it fits" in planned()
