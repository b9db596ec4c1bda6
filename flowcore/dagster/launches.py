"""Restrict a launch to settings of its run, without those of the deployment.

Anyone who can open Dagster's UI can launch runs, and Dagster lets a launch override every field of a
resource: the broker to which passwords are sent, folders, and options of Spark that load code. So the allowed
sections of a run configuration are listed here. Dagster checks what they contain by their types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from flowcore.errors import ConfigurationError

__all__ = ["DeployedResource", "check_launch", "refused_keys"]

_ALLOWED = (
    ("ops",),
    ("execution", "config", "retries"),
    ("execution", "config", "step_dependency_config"),
    ("execution", "config", "marker_to_close"),
    ("loggers", "console", "config", "log_level"),
    ("loggers", "console", "config", "name"),
)
"""Paths of a run configuration that load no code: other executors import modules, or run an image."""
_INPUT_VALUES = ((), ("value",))
"""What may be below an input of an op. Any other key is for the loader of its type to obey, and loaders read
files and databases that the launch names; loading a pickle executes it."""
_VARIABLE = "env"
"""Dagster replaces ``{"env": NAME}`` in the config of an op by the value of the variable."""
_SCAFFOLD = 3  # resources.NAME.config: an empty mapping up to there sets nothing


class DeployedResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """A resource whose fields are those of the deployment: a run whose launch sets any is refused."""

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Check the configuration of the run, before anything of the resource is used.

        Raises:
            ConfigurationError: The launch configures a resource.
        """
        if context.run is not None:
            check_launch(context.run.run_config)


def check_launch(run_config: Mapping[str, Any]) -> None:
    """Check that a run configuration has only what a launch may set; the error has its keys, not its values.

    >>> check_launch({"ops": {"sales__live": {"config": {"mode": "slice"}}}, "resources": {"spark": {}}})

    Raises:
        ConfigurationError: The configuration has another section, configures a resource, or chooses what an
            executor loads.
    """
    refused = refused_keys(run_config)
    if not refused:
        return
    msg = (
        f"the run configuration sets {', '.join(map(repr, refused))}, which only the deployment may set: "
        "a launcher could load code into Spark, send Kafka's password to another broker, read it from the "
        "environment, or read and write other files; nothing was started. Remove this from the launch: it "
        "sets 'ops' only (mode, run_seconds, heartbeat_seconds, refresh). To change it for all runs, set it "
        "where the code location calls definitions(...), "
        "in the file that FLOWCORE_SETTINGS names, or in FLOWCORE_*"
    )
    raise ConfigurationError(msg)


def refused_keys(run_config: Mapping[str, Any]) -> list[str]:
    """The keys of a run configuration that a launch may not set.

    >>> refused_keys({"resources": {"spark": {"config": {"spark_config": {"spark.jars": "a.jar"}}}}})
    ['resources.spark.config.spark_config.spark.jars']
    >>> refused_keys({"execution": {"config": {"job_image": "evil", "retries": {"enabled": {}}}}})
    ['execution.config.job_image']
    >>> refused_keys({"ops": {"own": {"config": {"greeting": {"env": "PASSWORD"}}}}})
    ['ops.own.config.greeting.env']
    >>> refused_keys({"ops": {"own": {"inputs": {"bids": {"csv": {"path": "bids.csv"}}, "names": ["a"]}}}})
    ['ops.own.inputs.bids.csv.path']
    """
    paths = dict.fromkeys(_paths(run_config, ()))
    return [
        ".".join(path)
        for path in paths
        if _loads_input(path)
        or _reads_variable(path)
        or not any(path[: len(allowed)] == allowed for allowed in _ALLOWED)
    ]


def _loads_input(path: tuple[str, ...]) -> bool:
    """Whether an input is more than a value or a list: ``ops.NAME.inputs.INPUT...``, also in a graph."""
    match path:
        case ("ops", _, "ops", *_):
            return _loads_input(path[2:])
        case ("ops", _, "inputs", _, *kinds):
            return tuple(kinds) not in _INPUT_VALUES
    return False


def _reads_variable(path: tuple[str, ...]) -> bool:
    """Whether a value is the name of a variable: ``ops.NAME.config....env``, also in a graph."""
    match path:
        case ("ops", _, "ops", *_):
            return _reads_variable(path[2:])
        case ("ops", _, "config", *_):
            return path[-1] == _VARIABLE
    return False


def _paths(content: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The path of each value, also of an empty one that replaces a field of a resource."""
    if isinstance(content, Mapping) and content:
        for key, value in content.items():
            yield from _paths(value, (*path, str(key)))
    elif isinstance(content, list) and content:
        for value in content:
            yield from _paths(value, path)
    elif content or len(path) > _SCAFFOLD:
        yield path
