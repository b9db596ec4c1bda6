"""deploy/kubernetes is valid by Kubernetes' schemas, has no root user, and its parts match."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from flowcore.cli.main import flowcore
from flowcore.settings import Settings

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy/kubernetes"
VERSION = "1.34"
Resource = dict[str, Any]


def load(name: str) -> list[Resource]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


KUSTOMIZATION = load("kustomization.yaml")[0]
RESOURCES = [resource for name in KUSTOMIZATION["resources"] for resource in load(name)]
(LIVE,) = [resource for resource in RESOURCES if resource["kind"] == "SparkApplication"]
PLAIN = [resource for resource in RESOURCES if resource is not LIVE]
(VALUES,) = load("dagster-values.yaml")
(DEPLOYMENT,) = VALUES["dagster-user-deployments"]["deployments"]
SETTINGS = next(resource for resource in PLAIN if resource["kind"] == "ConfigMap")["data"]["settings.toml"]


def title(resource: Resource) -> str:
    return f"{resource['kind']}/{resource['metadata']['name']}"


def pod(role: str) -> Resource:
    """The pod template of the driver or of an executor, as a pod."""
    template = LIVE["spec"][role]["template"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": role}, **template}


def container(role: str) -> Resource:
    (found,) = pod(role)["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def helm_pods() -> dict[str, Resource]:
    """The chart's pods for the values: one per part."""
    parts = {
        "webserver": VALUES["dagsterWebserver"],
        "daemon": VALUES["dagsterDaemon"],
        "code": DEPLOYMENT,
    }
    kept = ("securityContext", "resources", "livenessProbe", "readinessProbe", "startupProbe", "volumeMounts")
    return {
        name: {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "securityContext": part["podSecurityContext"],
                "containers": [{"name": name, **{key: part[key] for key in kept if key in part}}],
                "volumes": part.get("volumes", []),
            },
        }
        for name, part in parts.items()
    }


PODS = {"driver": pod("driver"), "executor": pod("executor"), **helm_pods()}


def test_kustomization_lists_every_resource() -> None:
    """A file that is not listed would never be applied."""
    others = {"kustomization.yaml", "dagster-values.yaml"}

    assert {path.name for path in FOLDER.iterdir()} == {*KUSTOMIZATION["resources"], *others}
    assert KUSTOMIZATION["kind"] == "Kustomization"
    assert len({title(resource) for resource in RESOURCES}) == len(RESOURCES)


@pytest.mark.parametrize("resource", PLAIN, ids=map(title, PLAIN))
def test_resource_is_valid_for_kubernetes(resource: Resource) -> None:
    """The schema of its kind refuses unknown fields."""
    kubernetes_validate.validate(resource, VERSION, strict=True)


@pytest.mark.parametrize("given", PODS.values(), ids=PODS)
def test_pod_is_valid_for_kubernetes(given: Resource) -> None:
    """This covers pods that the Spark operator and the chart create."""
    kubernetes_validate.validate(given, VERSION, strict=True)


@pytest.mark.parametrize("given", PODS.values(), ids=PODS)
def test_pod_is_not_root(given: Resource) -> None:
    """It runs as the image's user, without capabilities, and that user owns the folders."""
    (inner,) = given["spec"]["containers"]
    outer = given["spec"]["securityContext"]
    (user,) = re.findall(r"^USER (\d+):\d+$", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE)

    assert outer["runAsNonRoot"] is True
    assert outer["runAsUser"] == outer["fsGroup"] == int(user)
    assert inner["securityContext"] == {
        "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip


@pytest.mark.parametrize("given", PODS.values(), ids=PODS)
def test_volumes_of_a_pod_exist(given: Resource) -> None:
    """Each mount has a volume, and each volume's source is among the resources."""
    (inner,) = given["spec"]["containers"]
    volumes = {volume["name"]: volume for volume in given["spec"].get("volumes", ())}
    there = {title(resource) for resource in PLAIN}
    needed = {
        f"ConfigMap/{volume['configMap']['name']}" for volume in volumes.values() if "configMap" in volume
    }
    needed |= {
        f"PersistentVolumeClaim/{volume['persistentVolumeClaim']['claimName']}"
        for volume in volumes.values()
        if "persistentVolumeClaim" in volume
    }

    assert {mount["name"] for mount in inner.get("volumeMounts", ())} == volumes.keys()
    assert needed <= there


def test_settings_are_flowcores_and_name_the_folders_that_are_mounted() -> None:
    """An unknown setting or an unmounted folder would be noticed too late."""
    settings = Settings.of(tomllib.loads(SETTINGS), environment={})
    paths = {mount["mountPath"] for mount in container("driver")["volumeMounts"]}

    assert {str(settings.state_dir), str(settings.data_dir)} < paths
    assert settings.bootstrap_servers
    assert (settings.prometheus_port, settings.prometheus_host) == (9464, "0.0.0.0")  # noqa: S104
    assert container("driver")["ports"] == [{"name": "metrics", "containerPort": settings.prometheus_port}]


def test_driver_and_code_server_read_the_settings() -> None:
    """Both mount the file; the live query also has the address of its Dagster."""
    environment = {entry["name"]: entry["value"] for entry in container("driver")["env"]}
    (mounted,) = {
        mount["mountPath"] for mount in container("driver")["volumeMounts"] if mount["name"] == "settings"
    }
    file = environment.pop("FLOWCORE_SETTINGS")

    assert file == f"{mounted}/settings.toml" == DEPLOYMENT["env"]["FLOWCORE_SETTINGS"]
    port = VALUES["dagsterWebserver"]["service"]["port"]
    assert Settings.of(environment=environment).dagster_url == f"http://dagster-webserver:{port}"


def test_live_query_is_a_command_that_exists() -> None:
    """It is `flowcore run` of an importable flow, with the image's Python and this Spark."""
    spec = LIVE["spec"]
    lock = (ROOT / "requirements.lock").read_text()
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    command, flow = spec["arguments"]
    module, name = flow.split(":")
    context = click.Context(flowcore)

    assert (LIVE["apiVersion"], spec["type"], spec["mode"]) == (
        "sparkoperator.k8s.io/v1beta2", "Python", "cluster",
    )  # fmt: skip
    assert f"\npyspark=={spec['sparkVersion']} " in lock
    (packages,) = re.findall(r"SPARK_HOME=(\S+)/pyspark", dockerfile)
    assert spec["mainApplicationFile"] == f"local://{packages}/flowcore/cli/main.py"
    assert re.search(rf"FROM python:{packages.split('/python')[1].split('/')[0]}-", dockerfile)
    assert flowcore.get_command(context, command) is not None
    found = getattr(__import__(module, fromlist=[name]), name)
    _, probe, looked_at, option = container("driver")["livenessProbe"]["exec"]["command"]
    top = flowcore.get_command(context, probe)
    assert top is not None
    assert looked_at == found.name
    assert option in {text for parameter in top.params for text in parameter.opts}


def test_executors_have_the_connector_and_cores_for_real_time() -> None:
    """They have the image's class path, and cores for two partitions in both queries and for state."""
    conf, executor = LIVE["spec"]["sparkConf"], LIVE["spec"]["executor"]

    assert (
        conf["spark.executor.extraClassPath"]
        == conf["spark.driver.extraClassPath"]
        == "/opt/flowcore/connector/*"
    )
    assert "/opt/flowcore/connector\n" in (ROOT / "deploy/Dockerfile").read_text()
    assert conf["spark.authenticate"] == "true"
    assert executor["instances"] * executor["cores"] >= 2 + 2 + Settings().shuffle_partitions + 1


def test_driver_may_manage_its_executors() -> None:
    """Its account has a role of this namespace only."""
    account = LIVE["spec"]["driver"]["serviceAccount"]
    binding = next(resource for resource in PLAIN if resource["kind"] == "RoleBinding")
    role = next(resource for resource in PLAIN if resource["kind"] == "Role")

    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert f"ServiceAccount/{account}" in {title(resource) for resource in PLAIN}
    assert {"pods", "services", "configmaps"} <= set(role["rules"][0]["resources"])


def test_live_query_is_started_again_whatever_ends_it() -> None:
    """It has an hour for its bounded stages until it must be live."""
    startup = container("driver")["startupProbe"]

    assert LIVE["spec"]["restartPolicy"]["type"] == "Always"
    assert startup["httpGet"] == {"path": "/metrics", "port": "metrics"}
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 3600


def test_dagster_is_set_up_as_elsewhere() -> None:
    """Pools, retries and monitoring are those of flowcore/dagster/dagster.yaml, in the chart's spelling."""
    here = yaml.safe_load((ROOT / "flowcore/dagster/dagster.yaml").read_text())
    daemon = VALUES["dagsterDaemon"]

    assert VALUES["telemetry"] == here["telemetry"]
    assert _snake(VALUES["concurrency"]["pools"]) == here["concurrency"]["pools"]
    assert _snake(daemon["runRetries"]) == here["run_retries"]
    assert _snake(daemon["runMonitoring"]) == here["run_monitoring"]
    assert DEPLOYMENT["includeConfigInLaunchedRuns"] == {"enabled": True}


def _snake(values: Resource) -> Resource:
    return {re.sub(r"([A-Z])", r"_\1", key).lower(): value for key, value in values.items()}
