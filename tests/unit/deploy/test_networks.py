"""The network policies of deploy/kubernetes allow what pods need, and nothing else."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import yaml

from flowcore.settings import Settings

FOLDER = Path(__file__).parents[3] / "deploy/kubernetes"
Resource = dict[str, Any]

PLAIN: list[Resource] = [
    resource
    for path in sorted(FOLDER.glob("*.yaml"))
    for resource in yaml.safe_load_all(path.read_text())
    if "kind" in resource
]
VALUES = yaml.safe_load((FOLDER / "dagster-values.yaml").read_text())
(DEPLOYMENT,) = VALUES["dagster-user-deployments"]["deployments"]
(PROXY,) = [resource for resource in PLAIN if resource["kind"] == "Deployment"]
(LIVE,) = [resource for resource in PLAIN if resource["kind"] == "SparkApplication"]
POLICIES = {each["metadata"]["name"]: each["spec"] for each in PLAIN if each["kind"] == "NetworkPolicy"}
_RUN = VALUES["runLauncher"]["config"]["customRunLauncher"]["config"]["run_k8s_config"]
PARTS = {
    labels["flowcore/part"]
    for labels in (
        LIVE["spec"]["driver"]["template"]["metadata"]["labels"],
        LIVE["spec"]["executor"]["template"]["metadata"]["labels"],
        PROXY["spec"]["template"]["metadata"]["labels"],
        VALUES["dagsterWebserver"]["labels"],
        VALUES["dagsterDaemon"]["labels"],
        DEPLOYMENT["labels"],
        _RUN["pod_template_spec_metadata"]["labels"],
    )
}


def _selected(selector: Resource) -> set[str]:
    """The pods that a selector selects, by our one label."""
    wanted = selector.get("matchLabels", {}).get("flowcore/part")
    allowed = {wanted} if wanted else set(PARTS)
    for expression in selector.get("matchExpressions", ()):
        assert (expression["key"], expression["operator"]) == ("flowcore/part", "In")
        allowed &= set(expression["values"])
    assert allowed <= PARTS
    return allowed


def _connections(direction: str, peers: str) -> dict[str, set[str]]:
    """Who may connect to whom by the policies of one direction; `anywhere` is any address."""
    found: dict[str, set[str]] = {name: set() for name in PARTS}
    for spec in POLICIES.values():
        for rule in spec.get(direction, ()):
            ports = [f":{port['port']}" for port in rule.get("ports", ())] or [""]
            others = [other for peer in rule.get(peers, ()) for other in _peers(peer)] or ["anywhere"]
            for name in _selected(spec["podSelector"]):
                found[name] |= {other + port for other in others for port in ports}
    return found


def _peers(peer: Resource) -> list[str]:
    if "podSelector" in peer:
        return sorted(_selected(peer["podSelector"]))
    return [*peer["namespaceSelector"]["matchLabels"]]


def test_nothing_is_reachable_unless_a_policy_says_so() -> None:
    """One policy selects all pods and allows nothing."""
    assert POLICIES["nothing"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert all(
        {"Ingress": "ingress", "Egress": "egress"}[kind] in spec
        for name, spec in POLICIES.items()
        for kind in spec["policyTypes"]
        if name != "nothing"
    )


def test_policies_let_pods_be_reached_by_those_that_need_them() -> None:
    """Above all: only the proxy reaches the webserver, and nothing of Spark does."""
    assert _connections("ingress", "from") == {
        "driver": {"driver", "executor", "flowcore/metrics:9464"},
        "executor": {"driver", "executor"},
        "proxy": {"driver:8081", "flowcore/browsers:8080"},
        "webserver": {"proxy:3000"},
        "daemon": set(),
        "code": {"daemon:4000", "webserver:4000"},
        "run": {"flowcore/metrics:9464"},
    }


def test_policies_let_pods_reach_what_they_need() -> None:
    """Executors and the proxy reach nothing outside but Kafka and the webserver."""
    names = "kubernetes.io/metadata.name:53"
    kubernetes, database, kafka = {"anywhere:443", "anywhere:6443"}, {"anywhere:5432"}, {"anywhere:9092"}

    assert _connections("egress", "to") == {
        "driver": {names, "driver", "executor", "proxy:8081"} | kubernetes | kafka,
        "executor": {names, "driver", "executor"} | kafka,
        "proxy": {names, "webserver:3000"},
        "webserver": {names, "code:4000"} | kubernetes | database,
        "daemon": {names, "code:4000"} | kubernetes | database,
        "code": {names} | database | kafka,
        "run": {names} | database | kafka,
    }


def test_ports_of_the_policies_are_those_of_the_pods() -> None:
    """The proxy finds the webserver, and the policies know the port of Kafka in the settings."""
    environment = {
        each["name"]: each.get("value") for each in PROXY["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    (settings_file,) = (each["data"]["settings.toml"] for each in PLAIN if each["kind"] == "ConfigMap")
    settings = Settings.of(tomllib.loads(settings_file), environment={})

    assert (
        environment["PROXY_UPSTREAM"] == f"dagster-webserver:{VALUES['dagsterWebserver']['service']['port']}"
    )
    assert environment["PROXY_REPORTS"] == "0.0.0.0:8081"
    assert (settings.bootstrap_servers or "").endswith(":9092")
    assert DEPLOYMENT["port"] == 4000
