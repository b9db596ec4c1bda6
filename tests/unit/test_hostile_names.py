"""A name that others chose changes no view: not its structure, and nothing that a terminal or browser obeys.

Each view is rendered with a harmless name and with a hostile one, and read as its consumer reads it. Both
have the same structure, and the hostile name is found as text.
"""

import io
import json
import pickle
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, RenderableType

from flowcore import Flow, KafkaTopic, Parquet
from flowcore.cli import latency, main, run, state, top, watermarks
from flowcore.dagster.attributes import Objectives
from flowcore.dagster.metadata import plan_metadata, progress_metadata
from flowcore.dagster.names import build_external_assets
from flowcore.dagster.stream_checks import evaluate_objectives
from flowcore.errors import RunError
from flowcore.escaping import markdown_block, printable
from flowcore.latency import LatencySummary
from flowcore.metrics.dagster import figures
from flowcore.metrics.progress import FlowProgress, LatencyProgress
from flowcore.metrics.prometheus import PrometheusListener
from flowcore.metrics.report import report_page
from flowcore.metrics.reporting import describe_events
from flowcore.planner import plan_flow
from flowcore.planner.plan import Plan
from flowcore.spark.results.manifest import Manifest, Table
from flowcore.spark.run.tagged_sources import TaggedSource
from flowcore.watermarks.merge import PartitionWatermark
from tests.unit.metrics import full_progress

HARMLESS = "harmless"
NOW_MS = full_progress.NOW_MS
SCHEMA = "shop STRING, price DOUBLE"
ATTACKS = [
    "\x1b[2J", "\x1b]8;;http://evil\x1b\\", "\x9b2J", "\x07", "\x00", "\r", "\n", "\t", "\u2028", "\x85",
    "\u202eevil", "\u2066", "\u200b", "\u200d", "\u3164", "\u034f", "\ufe0f", "\ud800", "\U000e0041",
    "[link=http://evil]a[/link]", "[bold]", "[/]", ":bomb:",
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", '" onload="alert(1)', "'>", "]]>", "-->",
    "&lt;", "`", "``", "```", "](javascript:alert(1))", "![a](http://evil)", "http://evil", "|", "\\", "\\|",
    "%%{init: {}}%%", "#59;", "#quot;", "$$x$$", '"] --> x["', "subgraph", "=cmd()", "{{7*7}}", "%s", "  ",
]  # fmt: skip
# Controls but the end of a line, what reorders text, what has no width, halves of surrogate pairs.
INVISIBLE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u034f\u061c\u115f\u1160\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\ud800-\udfff\U000e0000-\U000e0fff]"
)
hostile = st.one_of(
    st.sampled_from(ATTACKS),
    st.lists(st.sampled_from([*ATTACKS, "a", " "]), min_size=2, max_size=6).map("".join),
    st.text(st.characters(), min_size=1),
)


class Parsed(NamedTuple):
    """A view as its consumer sees it: what is the same for all names, and the texts that have the name."""

    structure: Any
    texts: list[str]


def progress(name: str) -> FlowProgress:
    """A run with the name wherever a text can be."""
    query = full_progress.query()
    query = replace(
        query,
        name=name,
        mode=name,
        bounded={name: name},
        partitions=tuple(replace(each, topic=name) for each in query.partitions),
    )
    return full_progress.run(
        flow=name,
        host=name,
        state="failed",
        error=name,
        queries=(query,),
        latencies=(LatencyProgress(source=name, sink=name, markers=1, p99_ms=1.0),),
        switches=(replace(full_progress.SWITCH, query=name, before=name, after=f"{name}2", reason=name),),
    )


def topic(name: str, schema: str | None = SCHEMA) -> KafkaTopic:
    """A topic with a name that its declaration refuses, as if it were from elsewhere."""
    made = KafkaTopic("topic", schema=schema)
    object.__setattr__(made, "name", name)
    return made


def plan(name: str) -> Plan:
    """A plan with the name wherever a declaration takes any text: topics and paths."""
    flow = Flow("wide")
    past = flow.read("past", Parquet(name, schema=SCHEMA))
    usual = past.aggregate(by="shop", usual="avg(price)", name="usual")
    bids = flow.read("bids", topic(name)).join(usual, on="shop")
    bids.where("price > 1").map(lambda bid: bid, schema="shop STRING").write("out", topic(f"{name}2", None))
    return plan_flow(flow)


def on_terminal(*shown: RenderableType) -> str:
    console = _console()
    console.print(*shown)
    return _written(console)


def _console() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=9_999)


def _written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def of_run(name: str) -> str:
    """What `flowcore run` says of its plan, of a stage, and of a failure."""
    console = _console()
    terminal = run.Terminal(console)
    manifest = Manifest(
        flow=name, stage=name, version=name, created_ms=0, duration_ms=0, fingerprint="", sources={},
        tables={name: Table(rows=3, schema=(), digest="", files=())}, rejected={name: 2},
    )  # fmt: skip
    terminal._committed(name, manifest, fresh=False)
    terminal._say(f"stage {name}: failed", "red")
    return _written(console)


def of_latency(name: str) -> str:
    summary = LatencySummary(name, name, 1, 1.0, 1.0, 1.0, 1.0)
    return on_terminal(latency._table("all", [summary])) + latency._line(summary)


def of_watermarks(name: str) -> str:
    source = TaggedSource(name, name, topic(name), {("0", name): PartitionWatermark(5)}, 3)
    return watermarks._as_text(source, [*watermarks._rows(source)])


def of_state(name: str) -> str:
    window = {"start_ms": 0, "end_ms": 9, "fields": {name: name}}
    shown = {
        "query": name,
        "operator": name,
        "key": {"user": name},
        "windows": [window],
        "states": {name: name},
    }
    return state._as_text(shown)


def of_prometheus(name: str) -> str:
    listener = PrometheusListener(range(1))
    listener.progressed(progress(name))
    registry = CollectorRegistry()
    registry.register(listener)
    return generate_latest(registry).decode()


def of_assets(name: str) -> str:
    specs = build_external_assets([plan(name)])
    return "\n\n".join(spec.description or "" for spec in specs)


def of_checks(name: str) -> str:
    results = evaluate_objectives(progress(name), NOW_MS, Objectives(latency_p99_ms=1))
    return "\n\n".join(result.description for result in results)


def of_health(name: str) -> str:
    return str(progress_metadata(progress(name))["health"].value)


def of_plan_metadata(name: str) -> str:
    return str(plan_metadata(plan(name))["plan"].value)


def parse_terminal(text: str) -> Parsed:
    r"""Lines, and the codes of colours: the only ones that a view needs."""
    colours = re.compile(r"\x1b\[[0-9;]*m")
    lines = colours.sub("", text).split("\n")
    return Parsed((len(lines), colours.findall(text)), lines)


def parse_html(text: str) -> Parsed:
    class Reader(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.tags: list[Any] = []
            self.texts: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.tags.append((tag, [key for key, _ in attrs]))

        def handle_decl(self, decl: str) -> None:
            self.tags.append(decl)

        def handle_comment(self, data: str) -> None:
            self.tags.append(data)

        def handle_data(self, data: str) -> None:
            self.texts.append(data)

    reader = Reader()
    reader.feed(text)
    reader.close()
    return Parsed(reader.tags, reader.texts)


def parse_svg(text: str) -> Parsed:
    nodes = [*ET.fromstring(text).iter()]  # noqa: S314 - it is our own
    return Parsed([(node.tag, sorted(node.attrib)) for node in nodes], [node.text or "" for node in nodes])


def parse_mermaid(text: str) -> Parsed:
    """Quoted labels, in which a number between # and ; is a character, and what is around them."""
    labels = [
        re.sub(r"#(\d+);", lambda match: chr(int(match[1])), each) for each in re.findall('"([^"]*)"', text)
    ]
    assert not re.search(r"%%|\$\$|`", text)
    return Parsed(re.sub('"[^"]*"', '""', text), labels)


def parse_markdown(text: str) -> Parsed:
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    flat = [each for token in tokens for each in (token, *(token.children or ()))]
    return Parsed(
        [(each.type, each.tag, sorted(each.attrs)) for each in flat],
        [each.content for each in flat if each.type in ("code_inline", "fence", "inline")],
    )


def parse_prometheus(text: str) -> Parsed:
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    return Parsed(
        sorted((each.name, *sorted(each.labels)) for each in samples),
        [value for each in samples for value in each.labels.values()],
    )


def parse_json(text: str) -> Parsed:
    assert text.isascii()
    assert text.isprintable()
    texts: list[str] = []

    def shape(value: Any) -> Any:
        match value:
            case dict():
                texts.extend(map(printable, value))
                return [shape(each) for each in value.values()]
            case list():
                return [shape(each) for each in value]
            case str():
                texts.append(printable(value))
        return type(value)

    return Parsed(shape(json.loads(text)), texts)


VIEWS: dict[str, tuple[Callable[[str], str], Callable[[str], Parsed]]] = {
    "top": (lambda name: on_terminal(top._view(progress(name))), parse_terminal),
    "top-json": (lambda name: json.dumps(progress(name).stored()), parse_json),
    "state": (of_state, parse_terminal),
    "latency": (of_latency, parse_terminal),
    "watermarks": (of_watermarks, parse_terminal),
    "run": (of_run, parse_terminal),
    "log": (lambda name: "\n".join(describe_events(None, progress(name))), parse_terminal),
    "report": (lambda name: report_page([progress(name)], NOW_MS), parse_html),
    "prometheus": (of_prometheus, parse_prometheus),
    "plan-text": (lambda name: plan(name).explain(verbose=True), parse_terminal),
    "plan-json": (lambda name: json.dumps(plan(name).to_dict()), parse_json),
    "plan-svg": (lambda name: plan(name).to_svg(), parse_svg),
    "plan-mermaid": (lambda name: plan(name).to_mermaid(), parse_mermaid),
    "dagster-plan": (of_plan_metadata, parse_markdown),
    "dagster-health": (of_health, parse_markdown),
    "dagster-assets": (of_assets, parse_markdown),
    "dagster-checks": (of_checks, parse_markdown),
    "dagster-figures": (lambda name: json.dumps(figures(progress(name))), parse_json),
}


@pytest.mark.parametrize("view", VIEWS)
@given(name=hostile)
@settings(max_examples=25)
def test_hostile_name_is_shown_as_text(view: str, name: str) -> None:
    """The view has the structure that it has with a harmless name, and no invisible character."""
    render, parse = VIEWS[view]

    rendered = render(name)
    parsed = parse(rendered)

    assert parsed.structure == parse(render(HARMLESS)).structure
    # A table of Markdown needs a backslash before a bar, which some readers show.
    assert any(_bare(printable(name)) in _bare(text) for text in parsed.texts)
    assert not [text for text in parsed.texts if INVISIBLE.search(text)]


def _bare(text: str) -> str:
    return text.replace("\\", "").strip()


def test_block_is_not_closed_by_its_text() -> None:
    """A fence in the text is shorter than the one around it."""
    text = "one\n````\n<b>two</b>"

    parsed = parse_markdown(markdown_block(text))

    assert parsed == Parsed([("fence", "code", [])], [f"{text}\n"])


def test_error_is_printed_without_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here a folder has a name that clears the screen."""
    (tmp_path / "\x1b[2Jevil" / "progress").mkdir(parents=True)
    monkeypatch.setattr(sys, "argv", ["flowcore", "top", "sales", "--once", "--set", f"state.dir={tmp_path}"])

    with pytest.raises(SystemExit):
        main.main()

    errors = capsys.readouterr().err
    assert "known flows: \\x1b[2Jevil" in errors
    assert "\x1b" not in errors


def test_unexpected_error_is_printed_without_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has its traceback, line by line."""

    def fail(_: object) -> None:
        raise ArithmeticError(name)

    name = "\x1b]0;evil\x07 value"
    monkeypatch.setattr(main.flowcore, "invoke", fail)
    monkeypatch.setattr(sys, "argv", ["flowcore", "top", "sales"])

    with pytest.raises(SystemExit):
        main.main()

    errors = capsys.readouterr().err.splitlines()
    assert errors[0] == "Traceback (most recent call last):"
    assert errors[-1] == "ArithmeticError: \\x1b]0;evil\\x07 value"


@given(name=hostile)
def test_text_of_an_error_has_nothing_that_a_terminal_obeys(name: str) -> None:
    """Dagster, a debugger and Spark's log show it without asking `flowcore.cli`."""
    error = RunError(f"topic {name!s}: gone")

    assert INVISIBLE.search(str(error)) is None
    assert INVISIBLE.search("".join(traceback.format_exception(error))) is None
    assert pickle.loads(pickle.dumps(error)).args == error.args  # noqa: S301 - its own bytes
