"""Every code block of every page runs: Python, settings, and the options of commands.

The blocks of a page run in their order, in one namespace. A page may go on with the streams of an earlier one
(`BEFORE`), or talk of streams that no page declares (`GIVEN`). The blocks of ``dagster.md`` are files, which
``tests/dagster/test_docs.py`` loads and runs; ``tests/kafka/test_tutorial.py`` runs ``tutorial.md``.
"""

import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest

import flowcore
from flowcore import Flow, KafkaTopic, Parquet, Stream, Tumbling, monotonous
from flowcore.cli.main import flowcore as command
from flowcore.planner import plan_flow
from flowcore.serializers.formats import registry
from flowcore.settings import Settings
from tests.idle_functions import IdleProcess

ROOT = Path(__file__).parents[3]
PAGES = {page.name: page.read_text() for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
BEFORE = {"process-functions.md": "windows.md", "state.md": "process-functions.md", "joins.md": "windows.md"}
"""The page whose streams a page goes on with."""
FILES = {"dagster.md", "tutorial.md"}
"""The pages whose blocks are files."""


def _live(flow: Flow, name: str, schema: str) -> Stream:
    return flow.read(name, KafkaTopic(name, schema=schema, watermark=monotonous()))


def _given_flows(flow: Flow) -> dict[str, Any]:
    money = {
        name: flow.read(name, Parquet(name, "account BIGINT, amount DOUBLE"))
        for name in ("credits", "debits")
    }
    return {
        **money,
        "bids": _live(flow, "bids", "id BIGINT, category INT, bidder BIGINT, price DOUBLE"),
        "moves": _live(flow, "moves", "item STRING, amount INT"),
        "lines": _live(flow, "lines", "id BIGINT, text STRING"),
        "events": _live(flow, "events", "user STRING, note STRING"),
        "match": max,
    }


GIVEN: dict[str, Callable[[Flow], dict[str, Any]]] = {
    "delivery.md": lambda flow: {
        "sales": _live(flow, "old-sales", "shop STRING, price DOUBLE"),
        "orders": _live(flow, "orders", "order_id BIGINT"),
    },
    "flows.md": _given_flows,
    "flush.md": lambda flow: {"bids": _live(flow, "bids", "auction_id BIGINT, price DOUBLE")},
    "formats.md": lambda _: {"CsvLine": registry.build_format},
    "functions.md": lambda flow: {"bids": _live(flow, "bids", "auction_id BIGINT, ip STRING, price DOUBLE")},
}


def blocks(page: str, language: str) -> list[str]:
    """The blocks of a page in a language; without one, they are commands and outputs."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGES[page], re.DOTALL | re.MULTILINE)


def run_page(page: str) -> dict[str, Any]:
    """Run the Python of a page, and return its names."""
    if page in BEFORE:
        names = run_page(BEFORE[page])
    else:
        # What every flow imports.
        names = {name: getattr(flowcore, name) for name in flowcore.__all__}
        names |= {"timedelta": timedelta, "flow": Flow("page")}
        names |= GIVEN[page](names["flow"]) if page in GIVEN else {}
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), names)  # noqa: S102 - our own pages
    return names


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python") and page not in FILES])
def test_python_of_a_page_runs(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it declares can be planned."""
    monkeypatch.setattr(registry, "_FORMATS", dict(registry._FORMATS))
    found = run_page(page)

    flows = [each for each in found.values() if isinstance(each, Flow) and each.sinks]
    assert all(plan_flow(each).explain(verbose=True) for each in flows)
    assert flows or page in {"formats.md", "functions.md", "plans.md", "flush.md"}


def test_every_kind_of_block_is_known() -> None:
    """A block in another language would run in no test."""
    found = {
        language for text in PAGES.values() for language in re.findall(r"^```(\w+)$", text, re.MULTILINE)
    }

    assert found == {"python", "toml", "yaml"}
    assert [page for page in PAGES if blocks(page, "yaml")] == ["dagster.md"]


def _operators() -> list[str]:
    """The examples in the table of operators."""
    table = PAGES["flows.md"].partition("## Operators")[2].partition("\n\n**")[0]
    return [cell for row in re.findall(r"^\| [^|]*\|([^|]*)\|", table, re.MULTILINE) for cell in
            re.findall(r"`([^`]*\(.*)`", row)]  # fmt: skip


@pytest.mark.parametrize("example", _operators())
def test_example_of_an_operator_can_be_declared(example: str) -> None:
    """Each is a method of a stream."""
    flow = Flow("page")
    columns = "id BIGINT, price DOUBLE, note STRING, item STRING, at BIGINT, n BIGINT"
    live, by_id, by_item = (
        _live(flow, name, schema)
        for name, schema in {
            "live": columns,
            "by_id": "id BIGINT, size INT",
            "by_item": "item STRING, size INT",
        }.items()
    )
    table = flow.read("table", Parquet("table", "id BIGINT, name STRING"))
    rows = flow.read("rows", Parquet("rows", columns))
    names = {
        **{name: getattr(flowcore, name) for name in flowcore.__all__},
        "UTC": UTC,
        "datetime": datetime,
        "timedelta": timedelta,
        "live": flow.read("dated", KafkaTopic("dated", columns, event_time="at")),
        "enrich": dict,
        "table": table,
        "other": next(
            each
            for part, each in {".union": live, ".co_group": rows, 'on="item"': by_item, "": by_id}.items()
            if part in example
        ),
        "Alarm": IdleProcess,
        "per_id": live.window(Tumbling(10), by="id", late="side-output").aggregate(n="count(*)"),
        "alarms": live.process(IdleProcess(), by="id", schema="n INT", side_outputs={"rare": "n INT"}),
    }
    stream = rows if ".co_group(" in example or ".then(" in example else live
    if ".write(" in example:
        stream = live.select("id")
    if ".through(" in example:
        stream = live.select("id", "n")

    found = eval(f"stream{example}" if example.startswith(".") else example, {**names, "stream": stream})  # noqa: S307

    assert isinstance(found, Stream) or ".write(" in example


def test_first_flow_imports_what_the_pages_use() -> None:
    """The page of flows begins with the imports."""
    names = run_page("flows.md")

    assert names["Csv"] is flowcore.Csv
    assert names["words"].columns == ("id", "word")
    explained = plan_flow(names["flow"]).explain()
    assert "best <- bids: top 3 in order of price desc, bidder by category" in explained
    assert "ordered <- events: sort by event time by user, late records to a side output" in explained
    assert "newest <- bids: latest in order of event time by bidder" in explained


def test_event_time_page_says_what_its_plan_says() -> None:
    """The plan of the second example says what its names promise."""
    names = run_page("event-time.md")

    assert "timed <- parse: event time at, out of order by up to 5 s" in plan_flow(names["flow"]).explain()
    assert [*names["parse"]({"line": "a@1 b@2"})] == [{"user": "a", "at": 1}, {"user": "b", "at": 2}]


def test_pages_of_operators_with_state_build_on_each_other() -> None:
    """Later pages use the flow of the first one."""
    assert "per_category" in plan_flow(run_page("windows.md")["flow"]).explain()
    joins = (
        "paid_orders and unpaid_in_window and paid_within_minute and priced_orders and newest_price and "
        "paid_any_time and unpaid_now and newest_orders and order_totals"
    )
    assert f"exchanges: {joins}, then sales" in plan_flow(run_page("joins.md")["shop"]).explain()


def test_settings_of_a_page_can_be_read(tmp_path: Path) -> None:
    """Each block is a file of settings."""
    found = [block for page in PAGES for block in blocks(page, "toml")]
    read = []
    for block in found:
        (tmp_path / "settings.toml").write_text(block)
        read.append(Settings.of({}, file=tmp_path / "settings.toml", environment={}))

    assert [each.kafka_mechanism for each in read if each.kafka_mechanism] == ["SCRAM-SHA-512", "OAUTHBEARER"]
    assert [each.trigger_interval for each in read if each.trigger_interval] == [timedelta(seconds=2)]
    assert len(found) == 6


def _commands() -> list[tuple[str, str]]:
    """Pairs of a page and a command of flowcore in one of its blocks, in full."""
    found = []
    for page in PAGES:
        for block in blocks(page, ""):
            lines = block.replace("\\\n", " ").splitlines()
            found += [(page, part.strip()) for line in lines for part in re.split(r"&&|#", line)]
    # The options of a benchmark are those of its script.
    return [
        (page, re.sub(r"^\S*/flowcore", "flowcore", line))
        for page, line in found
        if re.match(r"(\S*/)?flowcore (?!bench)", line)
    ]


@pytest.mark.parametrize(("page", "line"), _commands())
def test_command_of_a_page_has_these_options(page: str, line: str) -> None:
    """A synopsis has options in brackets, and placeholders for their values."""
    _, name, *words = shlex.split(re.sub(r"\[([^\]]*)\](\.\.\.)?", r"\1", line.replace("|", "/")))
    context = click.Context(command, info_name="flowcore")
    found = command.get_command(context, name)

    assert found is not None, page
    options = {option for each in found.params for option in (*each.opts, *each.secondary_opts)}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options
