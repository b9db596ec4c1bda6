"""What a launch may set, by the paths of its run configuration."""

from __future__ import annotations

from typing import Any

import pytest

from flowcore.dagster.launches import refused_keys

LOADS_CODE: dict[str, dict[str, Any]] = {
    "execution.config.job_image": {"execution": {"config": {"job_image": "evil"}}},
    "execution.config.multiprocess.start_method.forkserver.preload_modules": {
        "execution": {
            "config": {"multiprocess": {"start_method": {"forkserver": {"preload_modules": ["evil"]}}}}
        }
    },
    "ops.own.inputs.name.pickle.path": {"ops": {"own": {"inputs": {"name": {"pickle": {"path": "/evil"}}}}}},
    "ops.own.inputs.names.pickle.path": {
        "ops": {"own": {"inputs": {"names": ["a", {"pickle": {"path": "/evil"}}]}}}
    },
    "ops.graph.ops.own.inputs.name.json.path": {
        "ops": {"graph": {"ops": {"own": {"inputs": {"name": {"json": {"path": "/evil"}}}}}}}
    },
    **{
        f"ops.own.inputs.df.{kind}.{option}": {"ops": {"own": {"inputs": {"df": {kind: {option: "evil"}}}}}}
        for kind, option in (
            ("csv", "path"),
            ("jdbc", "url"),
            ("orc", "path"),
            ("other", "format"),
            ("parquet", "path"),
            ("table", "name"),
            ("text", "path"),
            ("value", "path"),
        )
    },
    "ops.own.inputs.df.jdbc": {"ops": {"own": {"inputs": {"df": {"jdbc": {}}}}}},
    "ops.own.inputs.df.value.value": {"ops": {"own": {"inputs": {"df": {"value": [{"value": "a"}]}}}}},
    "ops.own.config.name.env": {"ops": {"own": {"config": {"name": {"env": "KAFKA_PASSWORD"}}}}},
    "ops.own.config.names.env": {"ops": {"own": {"config": {"names": ["a", {"env": "KAFKA_PASSWORD"}]}}}},
    "ops.graph.ops.own.config.name.env": {
        "ops": {"graph": {"ops": {"own": {"config": {"name": {"env": "KAFKA_PASSWORD"}}}}}}
    },
    "loggers.evil.config.level": {"loggers": {"evil": {"config": {"level": "INFO"}}}},
}
HARMLESS: list[dict[str, Any]] = [
    {},
    {"execution": {}, "loggers": {}, "resources": {}},
    {"execution": {"config": {"retries": {"enabled": {}}}}},
    {"execution": {"config": {"step_dependency_config": {"require_upstream_step_success": False}}}},
    {"loggers": {"console": {"config": {"log_level": "DEBUG"}}}},
    {"ops": {"shop__live": {"config": {"mode": "slice"}}}},
    {"ops": {"env": {"config": {"environment": "env", "env": {"name": "a"}}}}},
    {"ops": {"own": {"inputs": {"name": "a", "names": ["b", {"value": "c"}], "values": {"value": [1, 2]}}}}},
    {"ops": {"graph": {"ops": {"own": {"inputs": {"name": 1.5, "nothing": None, "empty": []}}}}}},
    {"ops": {"own": {"config": {"inputs": {"x": {"json": {"path": "/a"}}}, "values": [1, {"pickle": 2}]}}}},
]


@pytest.mark.parametrize("path", LOADS_CODE)
def test_what_an_executor_or_logger_loads_is_refused(path: str) -> None:
    """Also in a project with another executor than the one of definitions(), or with ops of its own.

    The kinds of an input are those that ``dagster_pyspark.DataFrame`` loads, and others.
    """
    assert refused_keys(LOADS_CODE[path]) == [path]


@pytest.mark.parametrize("run_config", HARMLESS, ids=str)
def test_what_loads_nothing_is_allowed(run_config: dict[str, Any]) -> None:
    """A launchpad fills in sections that set nothing, too."""
    assert refused_keys(run_config) == []
