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
from flowcore.metrics.health import liveness_problem
from flowcore.metrics.progress import FlowProgress
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
LAUNCHER = VALUES["runLauncher"]["config"]["customRunLauncher"]["config"]
(PROXY,) = [resource for resource in PLAIN if resource["kind"] == "Deployment"]
VOLUMES = {"configMap", "emptyDir", "persistentVolumeClaim"}  # of those that `restricted` allows
SETTINGS = next(resource for resource in PLAIN if resource["kind"] == "ConfigMap")["data"]["settings.toml"]


def title(resource: Resource) -> str:
    return f"{resource['kind']}/{resource['metadata']['name']}"


def pod(role: str) -> Resource:
    """The pod template of the driver or of an executor, as a pod."""
    template = LIVE["spec"][role]["template"]
    metadata = {"name": role, **template["metadata"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def container(role: str) -> Resource:
    (found,) = pod(role)["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def helm_pods() -> dict[str, Resource]:
    """The pods that the chart makes for the values, and those of Dagster's runs."""
    parts = {
        "webserver": VALUES["dagsterWebserver"],
        "daemon": VALUES["dagsterDaemon"],
        "code": DEPLOYMENT,
    }
    kept = ("securityContext", "resources", "livenessProbe", "readinessProbe", "volumeMounts")
    pods = {
        name: {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": part["labels"]},
            "spec": {
                "securityContext": part["podSecurityContext"],
                "containers": [
                    {"name": name, **{key: part[key] for key in kept if key in part}, **_startup(part)}
                ],
                "volumes": part["volumes"],
            },
        }
        for name, part in parts.items()
    }
    run, inner = LAUNCHER["run_k8s_config"], LAUNCHER["run_k8s_config"]["container_config"]
    pods["run"] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "run", **run["pod_template_spec_metadata"]},
        "spec": {
            "serviceAccountName": LAUNCHER["service_account_name"],
            "securityContext": run["pod_spec_config"]["security_context"],
            "containers": [
                {
                    "name": "run",
                    "env": inner["env"],
                    "resources": inner["resources"],
                    "securityContext": inner["security_context"],
                    "volumeMounts": inner["volume_mounts"],
                }
            ],
            "volumes": run["pod_spec_config"]["volumes"],
        },
    }
    return pods


def _startup(part: Resource) -> Resource:
    probe = {key: value for key, value in part.get("startupProbe", {}).items() if key != "enabled"}
    return {"startupProbe": probe} if probe else {}


PODS = {
    "driver": pod("driver"),
    "executor": pod("executor"),
    "proxy": {"apiVersion": "v1", "kind": "Pod", **PROXY["spec"]["template"]},
    **helm_pods(),
}
PODS["proxy"]["metadata"]["name"] = "proxy"


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
    """It runs as the user of its image, without capabilities, and that user owns the folders."""
    (inner,) = given["spec"]["containers"]
    outer = given["spec"]["securityContext"]
    image = "proxy/Dockerfile" if given["metadata"]["name"] == "proxy" else "Dockerfile"
    (user,) = re.findall(r"^USER (\d+):\d+$", (ROOT / "deploy" / image).read_text(), re.MULTILINE)

    assert outer["runAsNonRoot"] is True
    assert outer["runAsUser"] == int(user)
    assert outer.get("fsGroup", int(user)) == int(user)
    assert inner["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("given", PODS.values(), ids=PODS)
def test_pod_conforms_to_pod_security_restricted(given: Resource) -> None:
    """The namespace refuses others: no part of the host, seccomp, and volumes of the cluster."""
    spec = given["spec"]
    (labels,) = (each["metadata"]["labels"] for each in PLAIN if each["kind"] == "Namespace")

    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC", "initContainers"}
    assert not any("hostPort" in port for port in spec["containers"][0].get("ports", ()))
    assert {key for volume in spec["volumes"] for key in volume if key != "name"} <= VOLUMES


@pytest.mark.parametrize("given", PODS.values(), ids=PODS)
def test_pod_can_write_where_its_programs_do(given: Resource) -> None:
    """Its root file system is read-only, so that temporary files are in volumes of their own."""
    (inner,) = given["spec"]["containers"]
    written = {mount["mountPath"] for mount in inner["volumeMounts"] if not mount.get("readOnly")}
    needed = {
        "proxy": {"/tmp"},  # noqa: S108
        "webserver": {"/tmp", "/home/flowcore", "/dagster"},  # noqa: S108
        "daemon": {"/tmp", "/home/flowcore", "/dagster"},  # noqa: S108
        "code": {"/tmp", "/home/flowcore", "/dagster", "/scratch", "/state"},  # noqa: S108
        "run": {"/tmp", "/home/flowcore", "/dagster", "/scratch", "/state"},  # noqa: S108
        "driver": {"/tmp", "/home/flowcore", "/scratch", "/state"},  # noqa: S108
        "executor": {"/tmp", "/home/flowcore", "/scratch", "/state"},  # noqa: S108
    }

    assert written == needed[given["metadata"]["name"]]


def test_spark_of_dagsters_runs_has_a_volume_for_temporary_files() -> None:
    """Spark on Kubernetes has its own."""
    for env in (DEPLOYMENT["env"], PODS["run"]["spec"]["containers"][0]["env"]):
        assert {"name": "TMPDIR", "value": "/scratch"} in env


@pytest.mark.parametrize("given", PODS.values(), ids=PODS)
def test_secrets_of_a_pod_are_references(given: Resource) -> None:
    """No password is written in a manifest."""
    entries = {entry["name"]: entry for entry in given["spec"]["containers"][0].get("env", ())}
    secret = {name for name in entries if re.search("PASSWORD|USERNAME|SECRET|TOKEN", name)}

    assert all(set(entries[name]["valueFrom"]) == {"secretKeyRef"} for name in secret)
    assert given["metadata"]["name"] in ("webserver", "daemon", "executor", "code") or secret


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
    assert settings.prometheus_ports
    (port,) = settings.prometheus_ports  # each run has a pod of its own
    assert (port, settings.prometheus_host) == (9464, "0.0.0.0")  # noqa: S104
    assert container("driver")["ports"] == [{"name": "metrics", "containerPort": port}]


def test_driver_and_code_server_read_the_settings() -> None:
    """Both mount the file; the live query also has the address to which it reports."""
    environment = {entry["name"]: entry["value"] for entry in container("driver")["env"] if "value" in entry}
    code = {entry["name"]: entry.get("value") for entry in DEPLOYMENT["env"]}
    (mounted,) = {
        mount["mountPath"] for mount in container("driver")["volumeMounts"] if mount["name"] == "settings"
    }
    file = environment.pop("FLOWCORE_SETTINGS")

    assert file == f"{mounted}/settings.toml" == code["FLOWCORE_SETTINGS"]
    assert DEPLOYMENT["env"] == LAUNCHER["run_k8s_config"]["container_config"]["env"]
    (service,) = [each for each in PLAIN if each["kind"] == "Service"]
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    address = f"http://{service['metadata']['name']}:{ports['reports']}"
    assert Settings.of(environment=environment).dagster_url == address


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
    assert re.search(rf"ARG BASE=python:{packages.split('/python')[1].split('/')[0]}-", dockerfile)
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
    for key in ("spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled"):
        assert conf[key] == "true"
    assert executor["instances"] * executor["cores"] >= 2 + 2 + Settings().shuffle_partitions + 1


def rights(account: str) -> dict[str, set[str]]:
    """The verbs by resource of an account of this namespace, which has one role."""
    (binding,) = [
        each
        for each in PLAIN
        if each["kind"] == "RoleBinding" and each["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    ]
    (role,) = [each for each in PLAIN if title(each) == f"Role/{binding['roleRef']['name']}"]
    assert f"ServiceAccount/{account}" in {title(resource) for resource in PLAIN}
    return {rule["resources"][0]: set(rule["verbs"]) for rule in role["rules"]}


def test_dagster_may_manage_the_jobs_of_its_runs_and_nothing_else() -> None:
    """These are the calls of dagster_k8s; the chart's own role could also change pods and make events."""
    assert VALUES["rbacEnabled"] is False
    assert VALUES["serviceAccount"]["create"] is False
    assert rights(VALUES["serviceAccount"]["name"]) == {
        "jobs": {"create", "list", "delete"},
        "jobs/status": {"get"},
        "pods": {"get", "list", "delete"},
        "pods/log": {"get"},
        "events": {"list"},
    }


def test_images_of_the_chart_are_pinned() -> None:
    """Of the containers that it adds, one is left out, and the other has a digest and limits."""
    image = VALUES["busybox"]["image"]

    assert re.fullmatch(r"[0-9.]+@sha256:[0-9a-f]{64}", image["tag"])
    for part in ("dagsterWebserver", "dagsterDaemon"):
        assert VALUES[part]["checkDbReadyInitContainer"] is False
        assert VALUES[part]["initContainerResources"].keys() == {"requests", "limits"}
    locked = (ROOT / "requirements.lock").read_text()
    (version,) = re.findall(r"^dagster==(\S+)", locked, re.MULTILINE)
    commands = [
        (ROOT / name).read_text() for name in ("docs/deploy.md", "deploy/kubernetes/dagster-values.yaml")
    ]
    assert all(f"helm install dagster dagster/dagster --version {version} " in text for text in commands)


def test_driver_may_manage_its_executors_and_nothing_else() -> None:
    """Its account has a role of this namespace; with these settings Spark touches nothing else."""
    account, conf = LIVE["spec"]["driver"]["serviceAccount"], LIVE["spec"]["sparkConf"]

    assert rights(account) == {
        "pods": {"create", "get", "list", "watch", "delete", "deletecollection"},
        "configmaps": {"create", "list", "delete", "deletecollection"},
    }
    # Otherwise it lists and deletes services and volume claims.
    assert conf["spark.kubernetes.driver.service.deleteOnTermination"] == "false"
    assert conf["spark.kubernetes.driver.ownPersistentVolumeClaim"] == "false"
    assert conf["spark.kubernetes.driver.reusePersistentVolumeClaim"] == "false"


def test_executors_have_no_token() -> None:
    """Without an account of their own Spark would give them the driver's."""
    account = LIVE["spec"]["executor"]["serviceAccount"]
    (found,) = [each for each in PLAIN if title(each) == f"ServiceAccount/{account}"]

    assert found["automountServiceAccountToken"] is False
    assert pod("executor")["spec"]["automountServiceAccountToken"] is False
    assert PODS["proxy"]["spec"]["automountServiceAccountToken"] is False
    assert account != LIVE["spec"]["driver"]["serviceAccount"]


def test_code_of_a_project_has_no_rights() -> None:
    """The account of code server and runs is bound to no role, and the chart makes none for it."""
    code, run = VALUES["dagster-user-deployments"], LAUNCHER["service_account_name"]
    bound = [each["subjects"] for each in PLAIN if each["kind"] == "RoleBinding"]

    assert code["serviceAccount"] == {"create": False, "name": run}
    assert code["rbacEnabled"] is False
    assert f"ServiceAccount/{run}" in {title(resource) for resource in PLAIN}
    assert not any(subject["name"] == run for subjects in bound for subject in subjects)


def test_live_query_is_started_again_whatever_ends_it() -> None:
    """It has an hour until its first progress report, of which the liveness probe asks."""
    startup, liveness = (container("driver")[kind] for kind in ("startupProbe", "livenessProbe"))
    interval_s = Settings().metrics_interval.total_seconds()
    last = FlowProgress(
        flow="auctions", time_ms=0, seconds=1.0, state="running", interval_s=interval_s, host="gone"
    )

    assert LIVE["spec"]["restartPolicy"]["type"] == "Always"
    assert startup["exec"] == liveness["exec"]
    assert startup["timeoutSeconds"] == liveness["timeoutSeconds"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 3600
    # The last report of a driver that was killed must not count as the first of the next one.
    assert liveness_problem(last, startup["initialDelaySeconds"] * 1000)


def test_dagster_is_set_up_as_elsewhere() -> None:
    """Pools, retries and monitoring are those of flowcore/dagster/dagster.yaml, in the chart's spelling."""
    here = yaml.safe_load((ROOT / "flowcore/dagster/dagster.yaml").read_text())
    daemon = VALUES["dagsterDaemon"]

    assert VALUES["telemetry"] == here["telemetry"]
    assert _snake(VALUES["concurrency"]["pools"]) == here["concurrency"]["pools"]
    assert _snake(daemon["runRetries"]) == here["run_retries"]
    assert _snake(daemon["runMonitoring"]) == here["run_monitoring"]
    assert DEPLOYMENT["includeConfigInLaunchedRuns"] == {"enabled": False}


def _snake(values: Resource) -> Resource:
    return {re.sub(r"([A-Z])", r"_\1", key).lower(): value for key, value in values.items()}
