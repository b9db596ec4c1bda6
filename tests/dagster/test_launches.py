"""A launch from the UI sets how a run goes, and neither code that Spark loads, nor a broker, nor folders."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetCheckKey,
    AssetKey,
    DagsterInstance,
    DagsterInvalidConfigError,
    Definitions,
    EnvVar,
    OpExecutionContext,
    StringSource,
    asset,
    define_asset_job,
    job,
    op,
    validate_run_config,
)
from dagster._config import ConfigType
from dagster._core.errors import DagsterResourceFunctionError
from pyspark import SparkContext

from flowcore import Flow, KafkaTopic, Parquet
from flowcore.dagster import (
    FlowcoreResource,
    KafkaResource,
    ResultsResource,
    SparkResource,
    definitions,
    flow_assets,
)
from flowcore.errors import ConfigurationError

pytestmark = pytest.mark.dagster

LAUNCHABLE = {
    "execution.config.marker_to_close",  # deprecated: Dagster's executor reads it nowhere
    "execution.config.retries.disabled",
    "execution.config.retries.enabled",
    "execution.config.step_dependency_config.require_upstream_step_success",
    "loggers.console.config.log_level",
    "loggers.console.config.name",
    "ops.shop__catalog_complete.config",  # of checks, which read none
    "ops.shop__catalog_values.config",
    "ops.shop__history.config.refresh",
    "ops.shop__live.config.heartbeat_seconds",
    "ops.shop__live.config.mode",
    "ops.shop__live.config.run_seconds",
}

SPARK = {
    "spark.jars": "/evil.jar",
    "spark.jars.packages": "evil:evil:1",
    "spark.jars.ivySettings": "/evil.xml",
    "spark.extraListeners": "evil.Listener",
    "spark.sql.streaming.streamingQueryListeners": "evil.Listener",
    "spark.sql.extensions": "evil.Extensions",
    "spark.plugins": "evil.Plugin",
    "spark.driver.extraJavaOptions": "-javaagent:/evil.jar",
    "spark.executor.extraJavaOptions": "-javaagent:/evil.jar",
    "spark.driver.extraClassPath": "/evil",
    "spark.executor.extraClassPath": "/evil",
    "spark.submit.pyFiles": "/evil.zip",
    "spark.archives": "/evil.tgz",
    "spark.files": "/evil",
    "spark.pyspark.python": "/evil",
    "spark.executorEnv.PYTHONPATH": "/evil",
    "spark.master": "spark://evil:7077",
}
HOSTILE = {
    **{key: {"spark": {"spark_config": {key: value}}} for key, value in SPARK.items()},
    "nested keys": {"spark": {"spark_config": {"spark": {"jars": "/evil.jar"}}}},
    "an option of the deployment, removed": {"spark": {"spark_config": {}}},
    "an option of Spark among the settings": {"flowcore": {"more": {"spark.jars": "/evil.jar"}}},
    "another broker": {"kafka": {"bootstrap_servers": "evil:9092"}},
    "another broker among the settings": {"flowcore": {"more": {"kafka.bootstrap.servers": "evil:9092"}}},
    "no encryption": {"kafka": {"security_protocol": None}},
    "a variable of the environment": {"kafka": {"bootstrap_servers": {"env": "KAFKA_PASSWORD"}}},
    "another state folder": {"results": {"state_dir": "/evil"}},
    "another data folder": {"results": {"data_dir": "/etc"}},
    "pickles from another folder": {"io_manager": {"base_dir": "/evil"}},
}


@pytest.fixture(scope="module")
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture(scope="module")
def shop() -> Definitions:
    """The definitions of a deployment with a broker, folders and Spark's options."""
    flow = Flow("shop")
    raw = flow.read("raw", Parquet("raw", schema="id BIGINT"))
    catalog = raw.aggregate(by="id", number="count(*)", name="catalog")
    flow.read("in", KafkaTopic("in", schema="id BIGINT")).join(catalog, on="id").write(
        "out", KafkaTopic("out")
    )
    return definitions(
        flow_assets(flow),
        kafka=KafkaResource(bootstrap_servers="kafka.invalid:9092", password=EnvVar("KAFKA_PASSWORD")),
        results=ResultsResource(data_dir="/nowhere/data", state_dir="/nowhere/state"),
        spark=SparkResource(spark_config={"spark.authenticate": "true"}),
    )


def _leaves(kind: ConfigType, path: tuple[str, ...] = ()) -> Iterator[str]:
    """The paths of all values that a run configuration may have, by Dagster's own types."""
    fields = getattr(kind, "fields", None)
    if not fields:
        yield ".".join(path)
    for name, field in (fields or {}).items():
        yield from _leaves(field.config_type, (*path, name))


def test_launchable_configuration_is_this(shop: Definitions) -> None:
    """A new field that a launch can set is seen here; resources are refused below."""
    paths = {
        path
        for job in ("shop_history", "shop_slice", "shop_live")
        for path in _leaves(shop.resolve_job_def(job).run_config_schema.config_type)
    }

    assert {path for path in paths if not path.startswith("resources.")} == LAUNCHABLE
    assert {path.split(".")[1] for path in paths - LAUNCHABLE} == {
        "flowcore", "io_manager", "kafka", "results", "spark",
    }  # fmt: skip


@pytest.mark.parametrize("job", ["shop_history", "shop_live"])
@pytest.mark.parametrize("given", HOSTILE.values(), ids=HOSTILE)
def test_launch_that_configures_a_resource_is_refused(
    shop: Definitions,
    instance: DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    job: str,
    given: dict[str, Any],
) -> None:
    """Before a JVM starts; the error has the key and where it is set instead, and no value."""
    monkeypatch.setenv("KAFKA_PASSWORD", "s3cret")
    ((name, config),) = given.items()
    run_config = {"resources": {name: {"config": config}}}
    before = SparkContext._active_spark_context  # of other tests
    with pytest.raises(DagsterResourceFunctionError) as refused:
        shop.resolve_job_def(job).execute_in_process(instance=instance, run_config=run_config)
    message = str(refused.value.__cause__)

    assert isinstance(refused.value.__cause__, ConfigurationError)
    assert f"resources.{name}.config.{next(iter(config))}" in message
    assert all(
        word in message for word in ("only the deployment", "nothing was started", "FLOWCORE_SETTINGS")
    )
    assert "evil" not in message
    assert "s3cret" not in message
    assert SparkContext._active_spark_context is before


@pytest.mark.parametrize("check", ["running", "fresh"])
def test_launch_of_a_check_cannot_configure_a_resource(
    shop: Definitions, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch, check: str
) -> None:
    """Nor can that of one that uses no resource itself."""
    monkeypatch.setenv("KAFKA_PASSWORD", "s3cret")
    key = AssetCheckKey(AssetKey(["shop", "live"]), check)
    only = shop.resolve_implicit_global_asset_job_def().get_subset(
        asset_selection=set(), asset_check_selection={key}
    )
    run_config = {"resources": {"io_manager": {"config": {"base_dir": "/evil"}}}}
    done = only.execute_in_process(instance=instance, run_config=run_config, raise_on_error=False)

    assert not done.success


@pytest.mark.parametrize(
    "ops",
    [
        {"config": {"mode": "auto", "spark.jars": "/evil.jar"}},
        {"config": {"mode": "auto"}, "inputs": {"catalog": {"pickle": {"path": "/evil.pickle"}}}},
        {"config": {"mode": {"env": "KAFKA_PASSWORD"}}},
    ],
    ids=["field", "pickle", "variable"],
)
def test_launch_of_an_op_takes_its_own_fields_only(shop: Definitions, ops: dict[str, Any]) -> None:
    """The webserver refuses others by their type, before there is a run."""
    with pytest.raises(DagsterInvalidConfigError):
        validate_run_config(shop.resolve_job_def("shop_live"), {"ops": {"shop__live": ops}})


def test_launch_of_another_asset_cannot_configure_spark_either(instance: DagsterInstance) -> None:
    """The rule is one of the resource, so it holds for assets that a project adds."""

    @asset
    def own(spark: SparkResource) -> None:
        raise AssertionError(spark)

    shop = Definitions(
        assets=[own], jobs=[define_asset_job("own_job", [own])], resources={"spark": SparkResource()}
    )
    run_config = {"resources": {"spark": {"config": {"spark_config": {"spark.jars": "/evil.jar"}}}}}
    with pytest.raises(DagsterResourceFunctionError) as refused:
        shop.resolve_job_def("own_job").execute_in_process(instance=instance, run_config=run_config)

    assert "resources.spark.config.spark_config.spark.jars" in str(refused.value.__cause__)


def test_launch_of_an_own_op_reads_no_variable(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster would replace it by its value, which the op may show; its name is not a secret."""
    monkeypatch.setenv("FLOWCORE_KAFKA_SASL_PASSWORD", "s3cret")
    found: list[str] = []

    @op(config_schema={"name": StringSource})  # of a field `name: str` in a Config, too
    def own(spark: SparkResource) -> None:
        del spark
        found.append(OpExecutionContext.get().op_config["name"])

    @job(resource_defs={"spark": SparkResource()})
    def own_job() -> None:
        own()

    own_job.execute_in_process(instance=instance, run_config={"ops": {"own": {"config": {"name": "ann"}}}})
    with pytest.raises(DagsterResourceFunctionError) as refused:
        own_job.execute_in_process(
            instance=instance,
            run_config={"ops": {"own": {"config": {"name": {"env": "FLOWCORE_KAFKA_SASL_PASSWORD"}}}}},
        )

    assert "ops.own.config.name.env" in str(refused.value.__cause__)
    assert found == ["ann"]


def test_launch_of_an_own_op_loads_no_pickle(instance: DagsterInstance, tmp_path: Path) -> None:
    """Dagster would execute it to make the input of an op that nothing upstream makes."""
    (tmp_path / "evil.pickle").write_bytes(pickle.dumps(_Evil(tmp_path / "done")))

    @op
    def own(spark: SparkResource, name: str) -> None:
        raise AssertionError(spark, name)

    @job(resource_defs={"spark": SparkResource()})
    def own_job() -> None:
        own()

    inputs = {"name": {"pickle": {"path": str(tmp_path / "evil.pickle")}}}
    with pytest.raises(DagsterResourceFunctionError) as refused:
        own_job.execute_in_process(instance=instance, run_config={"ops": {"own": {"inputs": inputs}}})

    assert "ops.own.inputs.name.pickle.path" in str(refused.value.__cause__)
    assert not (tmp_path / "done").exists()


class _Evil:
    """Makes a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.mkdir, (self._folder,)


def test_launch_with_empty_resources_runs_with_those_of_the_deployment(
    instance: DagsterInstance, tmp_path: Path
) -> None:
    """A launchpad that names a resource without values changes nothing."""
    found: list[str] = []

    @asset
    def own(flowcore: FlowcoreResource) -> None:
        found.append(str(flowcore.settings().state_dir))

    resource = FlowcoreResource(results=ResultsResource(state_dir=str(tmp_path)))
    shop = Definitions(
        assets=[own], jobs=[define_asset_job("own_job", [own])], resources={"flowcore": resource}
    )
    run_config = {"resources": {"flowcore": {"config": {}}}}
    done = shop.resolve_job_def("own_job").execute_in_process(instance=instance, run_config=run_config)

    assert done.success
    assert found == [str(tmp_path)]
