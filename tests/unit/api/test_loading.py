"""A flow is found by MODULE:FLOW; a mistake in its module is reported with its line, not with a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flowcore.api.loading import load_flow
from flowcore.errors import ConfigurationError, PlanError

HEAD = "from flowcore import Flow, KafkaTopic\nflow = Flow('a')\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user's modules, which are forgotten afterwards."""
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import nothere", "ModuleNotFoundError: No module named 'nothere', at {file}, line 3: import"),
        ("flow.red('x')", "AttributeError: 'Flow' object has no attribute 'red', at {file}, line 3: flow"),
        ("KafkaTopic('x', shema='')", "got an unexpected keyword argument 'shema', at {file}, line 3: Kafka"),
        ("KafkaTopic('x'", "SyntaxError: '(' was never closed, at {file}, line 3: KafkaTopic('x'"),
        ("raise SystemExit(2)", "it ended Python (SystemExit: 2), as a program that reads its own arguments"),
        ("import json; json.loads('{')", "at {file}, line 3: import json; json.loads('{{')"),
    ],
    ids=["import", "attribute", "argument", "syntax", "exit", "library"],
)
def test_mistake_in_a_module_is_reported_with_its_line(folder: Path, line: str, said: str) -> None:
    """Also if a library that it calls raised."""
    (folder / "wrong.py").write_text(f"{HEAD}{line}\n")

    with pytest.raises(PlanError) as caught:
        load_flow("wrong:flow")

    assert str(caught.value).startswith("module 'wrong' cannot be imported: ")
    assert said.format(file=folder / "wrong.py") in str(caught.value)
    assert "python -c 'import wrong'" in str(caught.value)


def test_mistake_in_a_declaration_has_the_line_as_a_note(folder: Path) -> None:
    """The command prints notes; the message stays that of the operator."""
    module = folder / "column.py"
    module.write_text(f"{HEAD}bids = flow.read('bids', KafkaTopic('bids', 'id INT'))\nbids.select('idd')\n")

    with pytest.raises(PlanError, match="did you mean 'id'") as caught:
        load_flow("column:flow")

    assert caught.value.__notes__ == [f"declared at {module}, line 4: bids.select('idd')"]


def test_modules_that_do_not_exist_are_told_from_those_they_import(folder: Path) -> None:
    """`impo` is not a package of `imports`."""
    (folder / "imports.py").write_text("import impo\n")
    (folder / "packed").mkdir()
    (folder / "packed" / "__init__.py").write_text("")

    for missing in ("nowhere:flow", "packed.nowhere:flow"):
        with pytest.raises(ConfigurationError, match=f"no module '{missing[:-5]}' in {folder}"):
            load_flow(missing)
    with pytest.raises(PlanError, match=r"module 'imports' cannot be imported: .* 'impo', at"):
        load_flow("imports:flow")


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ("shop.py", "pass shop:flow$"),
        ("shop.py:sales", "pass shop:sales$"),
        ("./flows/shop.py:flow", "pass flows.shop:flow$"),
        ("/srv/flows/shop.py:flow", "pass shop:flow in /srv/flows$"),
        ("shop", "pass for instance shop:flow, if"),
        ("", "pass for instance my_flows.sales:flow"),
    ],
)
def test_what_is_not_a_module_and_a_flow_is_refused_with_the_right_text(given: str, instead: str) -> None:
    """A path is not imported as a module."""
    with pytest.raises(ConfigurationError, match=instead):
        load_flow(given)


def test_function_is_not_called(folder: Path) -> None:
    """A command has no arguments for it."""
    (folder / "makes.py").write_text(f"{HEAD}def make(day):\n    return flow\n")

    with pytest.raises(PlanError, match=r"are: flow \('make' is a function, and a command calls none"):
        load_flow("makes:make")


def test_output_of_a_module_is_not_output_of_the_command(folder: Path) -> None:
    """JSON on stdout stays JSON, and the note is printed below the error."""
    (folder / "prints.py").write_text(f"print('hello')\n{HEAD}flow.read('x', KafkaTopic('x', 'id INTT'))\n")

    done = subprocess.run(
        [sys.executable, "-m", "flowcore.cli.main", "plan", "prints:flow", "--format", "json"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (1, "")
    hello, error, note = done.stderr.splitlines()
    assert hello == "hello"
    assert error.startswith("error: schema 'id INTT'")
    assert note == f"declared at {folder}/prints.py, line 4: flow.read('x', KafkaTopic('x', 'id INTT'))"


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        ("top_n(3, order='id', ties=True)", "'ties' (only window(...).top_n(...) takes ties=)"),
        (
            "deduplicate(by='id', within=None, flush=None)",
            "(operators that emit what they read take no flush=",
        ),
        ("join_asof(bids, on='id', allowed_lateness=5)", "(only windows, join_interval and join_window take"),
        ("aggregate('id', n='count(*)')", "(its arguments have names, for instance by='id')"),
    ],
)
def test_arguments_that_python_refuses_have_a_hint(folder: Path, call: str, hint: str) -> None:
    """Python says only that an argument is unexpected."""
    bids = "bids = flow.read('bids', KafkaTopic('bids', 'id INT'))"
    (folder / "hinted.py").write_text(f"{HEAD}{bids}\nbids.{call}\n")

    with pytest.raises(PlanError) as caught:
        load_flow("hinted:flow")

    assert hint in str(caught.value)
