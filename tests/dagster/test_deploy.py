"""Dagster validates its files in deploy/."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster import DagsterRun
from dagster._config import process_config, resolve_to_config_type
from dagster._core.instance.config import dagster_instance_config
from dagster_k8s import K8sRunLauncher

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.mark.parametrize("folder", ["flowcore/dagster", "deploy/compose"])
def test_instance_is_one_that_dagster_can_make(folder: str, tmp_path: Path) -> None:
    """Every key is known, and so are the classes that it names."""
    shutil.copy(DEPLOY.parent / folder / "dagster.yaml", tmp_path)

    config, _ = dagster_instance_config(str(tmp_path))

    assert config["concurrency"]["pools"] == {"default_limit": 1, "granularity": "run"}
    assert ("storage" in config) is (folder == "deploy/compose")


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> K8sRunLauncher:
    """Dagster's launcher with the values of deploy/kubernetes; it asks no cluster for anything."""
    values = yaml.safe_load((DEPLOY / "kubernetes/dagster-values.yaml").read_text())
    given = values["runLauncher"]["config"]["customRunLauncher"]
    assert (given["module"], given["class"]) == ("dagster_k8s", K8sRunLauncher.__name__)
    schema = resolve_to_config_type({"launcher": K8sRunLauncher.config_type()})
    checked = process_config(schema, {"launcher": given["config"]})
    assert checked.success, checked.errors
    assert checked.value
    cluster = tmp_path_factory.mktemp("cluster") / "config"
    cluster.write_text(
        yaml.safe_dump(
            {
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "users": [{"name": "u", "user": {}}],
                "current-context": "c",
            }
        )
    )
    here = {"load_incluster_config": False, "kubeconfig_file": str(cluster)}
    return K8sRunLauncher(**checked.value["launcher"] | here)


def test_runs_on_kubernetes_are_what_their_launcher_takes(launcher: K8sRunLauncher) -> None:
    """Each has the folders, the user and the end that the values say."""
    found = launcher.get_container_context_for_run(DagsterRun("auctions_live")).run_k8s_config
    mounts = {mount["mount_path"] for mount in found.container_config["volume_mounts"]}

    assert {"/state", "/data", "/etc/flowcore"} <= mounts
    assert found.pod_spec_config["termination_grace_period_seconds"] == 60
    assert found.pod_spec_config["security_context"]["run_as_non_root"] is True
    assert found.container_config["security_context"]["read_only_root_filesystem"] is True


@pytest.mark.parametrize(
    ("field", "config"),
    [
        ("container_config.image", {"container_config": {"image": "evil"}}),
        ("container_config.command", {"container_config": {"command": ["sh", "-c", "evil"]}}),
        ("container_config.env", {"container_config": {"env": [{"name": "PYTHONPATH", "value": "/evil"}]}}),
        (
            "container_config.security_context",
            {"container_config": {"security_context": {"privileged": True}}},
        ),
        (
            "pod_spec_config.volumes",
            {"pod_spec_config": {"volumes": [{"name": "h", "host_path": {"path": "/"}}]}},
        ),
        (
            "pod_spec_config.service_account_name",
            {"pod_spec_config": {"service_account_name": "flowcore-driver"}},
        ),
    ],
)
def test_launch_on_kubernetes_cannot_choose_its_pod(
    launcher: K8sRunLauncher, field: str, config: dict[str, Any]
) -> None:
    """By default Dagster takes image, command and volumes from a tag that anyone gives to a run."""
    run = DagsterRun("auctions_live", tags={"dagster-k8s/config": json.dumps(config)})
    with pytest.raises(Exception, match=f"violated the allowed list: {field}"):
        launcher.get_container_context_for_run(run)
