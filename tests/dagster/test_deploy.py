"""Dagster validates its files in deploy/."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster._config import process_config, resolve_to_config_type
from dagster._core.instance.config import dagster_instance_config
from dagster_k8s import K8sRunLauncher
from dagster_k8s.container_context import K8sContainerContext

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.mark.parametrize("folder", ["flowcore/dagster", "deploy/compose"])
def test_instance_is_one_that_dagster_can_make(folder: str, tmp_path: Path) -> None:
    """Every key is known, and so are the classes that it names."""
    shutil.copy(DEPLOY.parent / folder / "dagster.yaml", tmp_path)

    config, _ = dagster_instance_config(str(tmp_path))

    assert config["concurrency"]["pools"] == {"default_limit": 1, "granularity": "run"}
    assert ("storage" in config) is (folder == "deploy/compose")


def test_runs_on_kubernetes_are_what_their_launcher_takes() -> None:
    """Containers, pods and folders of runs, by the launcher's own schema."""
    values = yaml.safe_load((DEPLOY / "kubernetes/dagster-values.yaml").read_text())
    launcher = values["runLauncher"]["config"]["k8sRunLauncher"]
    (code,) = values["dagster-user-deployments"]["deployments"]
    of_runs = {
        "run_k8s_config": {_snake(key): value for key, value in launcher["runK8sConfig"].items()},
        "volumes": code["volumes"],
        "volume_mounts": code["volumeMounts"],
        "env_vars": [f"{name}={value}" for name, value in code["env"].items()],
    }
    config: dict[str, Any] = {
        "service_account_name": "dagster",
        "instance_config_map": "dagster-instance",
        "dagster_home": values["global"]["dagsterHome"],
        **of_runs,
    }

    schema = resolve_to_config_type({"launcher": K8sRunLauncher.config_type()})
    checked = process_config(schema, {"launcher": config})

    assert checked.success, checked.errors
    context = K8sContainerContext.create_from_config({"k8s": of_runs})
    assert context.run_k8s_config.pod_spec_config["termination_grace_period_seconds"] == 60


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
