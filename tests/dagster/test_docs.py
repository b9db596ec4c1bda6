"""The second flow of docs/dagster.md is loaded and run unchanged, in Python and as YAML."""

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from dagster import AssetKey, DagsterInstance, Definitions
from dagster.components.core.component_tree import ComponentTreeException
from dagster.components.testing import create_defs_folder_sandbox

from flowcore.dagster import FlowComponent, FlowsComponent
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import end_offsets, ensure_topics

pytestmark = [
    pytest.mark.dagster,
    # Dagster's own, of what it is made of.
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.BetaWarning"),
]

PAGE = (Path(__file__).parents[2] / "docs" / "dagster.md").read_text()
FILES = dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
FORM = yaml.safe_load(FILES["shop/defs/shop/defs.yaml"])


@pytest.fixture(scope="module", autouse=True)
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The files of the page, where Python finds them."""
    folder = tmp_path_factory.mktemp("docs")
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield
        for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
            del sys.modules[name]


def _python() -> Definitions:
    found = importlib.import_module("shop.definitions").defs
    assert isinstance(found, Definitions)
    return found


def _component(kind: type, attributes: dict[str, Any]) -> Definitions:
    form = {"type": f"flowcore.dagster.{kind.__name__}", "attributes": attributes}
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(component_cls=kind, defs_yaml_contents=form)
        with sandbox.load_component_and_build_defs(defs_path=path) as (component, defs):
            assert isinstance(component, kind)
            return defs


def _described(defs: Definitions) -> dict[str, Any]:
    """All parts of the definitions that Dagster shows, for comparison."""
    graph, repository = defs.resolve_asset_graph(), defs.get_repository_def()
    return {
        "assets": {
            node.key.to_user_string(): (sorted(node.owners), node.group_name, node.description)
            for node in graph.asset_nodes
        },
        "checks": {key.to_user_string(): graph.get(key).description for key in graph.asset_check_keys},
        "jobs": sorted(job.name for job in repository.get_all_jobs()),
        "schedules": sorted((each.name, str(each.cron_schedule)) for each in repository.schedule_defs),
        "sensors": sorted((each.name, each.description) for each in repository.sensor_defs),
    }


def test_second_flow_is_short() -> None:
    """The length is that of a first program."""
    assert sum(len(FILES[f"shop/{name}.py"].splitlines()) for name in ("flow", "definitions")) < 60


def test_second_flow_has_all_that_the_page_says() -> None:
    """Assets, checks, jobs, schedules and sensors, with their descriptions."""
    found = _described(_python())

    assert found["assets"]["shop/usual"] == (["team:shop"], "shop", "The usual price of each item.")
    assert found["assets"].keys() == {
        "files/sales.csv", "kafka/bargains", "kafka/offers", "kafka/offers.dead-letter",
        "shop/live", "shop/usual",
    }  # fmt: skip
    assert "shop/live:latency" in found["checks"]
    assert "shop/usual:range_usual" in found["checks"]
    assert ("shop_refresh_schedule", "0 1 * * *") in found["schedules"]
    assert any("at most 20 times in a row" in description for _, description in found["sensors"])


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [(FlowComponent, FORM["attributes"]), (FlowsComponent, {"flows": [FORM["attributes"]]})],
    ids=["one", "several"],
)
def test_component_equals_the_python_definitions(kind: type, attributes: dict[str, Any]) -> None:
    """All described parts are equal."""
    assert FORM["type"] == "flowcore.dagster.FlowComponent"
    assert _described(_component(kind, attributes)) == _described(_python())


def test_component_refuses_unknown_fields() -> None:
    """A misspelt field would have no effect."""
    with pytest.raises(ComponentTreeException) as raised:
        _component(FlowComponent, {**FORM["attributes"], "automation": {"restart_limit": 3}})

    assert "restart_limit" in str(raised.value.__cause__)


@pytest.mark.thorough
def test_second_flow_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its two jobs process its table and its topic to the output topic."""
    (tmp_path / "sales.csv").write_text("item,price\nlamp,10\nlamp,20\nlamp,30\nchair,100\n")
    with EmbeddedBroker() as broker, DagsterInstance.ephemeral() as instance:
        monkeypatch.setenv("FLOWCORE_KAFKA_BOOTSTRAP_SERVERS", broker.bootstrap_servers)
        monkeypatch.setenv("FLOWCORE_DATA_DIR", str(tmp_path))
        monkeypatch.setenv("FLOWCORE_STATE_DIR", str(tmp_path / "state"))
        monkeypatch.setenv("FLOWCORE_EXECUTION_SHORT_LIVED", "true")
        ensure_topics(broker.bootstrap_servers, {"offers": 2})
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for item, price in (("lamp", 15.0), ("lamp", 19.0), ("chair", 1.0), ("desk", 1.0)):
            producer.produce("offers", json.dumps({"item": item, "price": price}))
        producer.produce("offers", b"no JSON")
        assert producer.flush(30) == 0
        defs = _python()
        runs = [
            defs.resolve_job_def(job).execute_in_process(instance=instance)
            for job in ("shop_history", "shop_slice")
        ]
        written = {
            topic: sum(end_offsets(broker.bootstrap_servers, topic).values())
            for topic in ("bargains", "offers.dead-letter")
        }

    assert all(run.success for run in runs)
    assert all(check.passed for check in runs[0].get_asset_check_evaluations())
    assert written == {"bargains": 2, "offers.dead-letter": 1}
    assert runs[1].asset_materializations_for_node("shop__live")[-1].asset_key == AssetKey(["shop", "live"])
