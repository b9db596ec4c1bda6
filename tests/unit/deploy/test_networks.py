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
PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
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
    """Our own pods, addresses, or another namespace by its name or label, with its pods if they are named."""
    if "ipBlock" in peer:
        assert peer.keys() == {"ipBlock"}
        return [peer["ipBlock"]["cidr"]]
    if "namespaceSelector" not in peer:
        return sorted(_selected(peer["podSelector"]))
    ((key, value),) = peer["namespaceSelector"]["matchLabels"].items()
    pods = "".join(f"/{name}" for name in peer.get("podSelector", {}).get("matchLabels", {}).values())
    return [f"{value if key == 'kubernetes.io/metadata.name' else key}{pods}"]


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
    """Executors and the proxy reach nothing outside but names, Kafka and the webserver."""
    names = "kube-system/kube-dns:53"
    kubernetes = {f"{block}:{port}" for block in PRIVATE for port in (443, 6443)}
    database, kafka = {"databases:5432"}, {"kafka:9092"}

    assert _connections("egress", "to") == {
        "driver": {names, "driver", "executor", "proxy:8081"} | kubernetes | kafka,
        "executor": {names, "driver", "executor"} | kafka,
        "proxy": {names, "webserver:3000"},
        "webserver": {names, "code:4000"} | kubernetes | database,
        "daemon": {names, "code:4000"} | kubernetes | database,
        "code": {names} | database | kafka,
        "run": {names} | database | kafka,
    }


def test_no_pod_reaches_any_address() -> None:
    """A pod that executes an attacker's code cannot send what it knows to the internet."""
    reached = {
        each.rpartition(":")[0] or each for each in set().union(*_connections("egress", "to").values())
    }

    assert "anywhere" not in reached
    assert {each for each in reached if "/" in each} == {"kube-system/kube-dns", *PRIVATE}


def test_database_and_broker_are_in_the_namespaces_of_the_policies() -> None:
    """A policy sees the address of a pod, so its namespace must be that of the host's name."""
    assert VALUES["postgresql"]["postgresqlHost"].partition(".")[2] == "databases"
    assert (_settings().bootstrap_servers or "").partition(".")[2] == "kafka:9092"


def _settings() -> Settings:
    (settings_file,) = (each["data"]["settings.toml"] for each in PLAIN if each["kind"] == "ConfigMap")
    return Settings.of(tomllib.loads(settings_file), environment={})


def test_ports_of_the_policies_are_those_of_the_pods() -> None:
    """The proxy finds the webserver, and the code server's port is that of the policies."""
    environment = {
        each["name"]: each.get("value") for each in PROXY["spec"]["template"]["spec"]["containers"][0]["env"]
    }

    assert (
        environment["PROXY_UPSTREAM"] == f"dagster-webserver:{VALUES['dagsterWebserver']['service']['port']}"
    )
    assert environment["PROXY_REPORTS"] == "0.0.0.0:8081"
    assert DEPLOYMENT["port"] == 4000
