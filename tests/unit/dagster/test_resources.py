"""The resources of a code location are those given to `definitions`, each in its own argument or in one."""

from __future__ import annotations

import pytest
from dagster import Definitions, EnvVar

from flowcore.dagster import FlowcoreResource, KafkaResource, ResultsResource, definitions
from flowcore.errors import SettingsError

BROKER = KafkaResource(bootstrap_servers="own:1")
OTHER_BROKER = KafkaResource(bootstrap_servers="other:1")
FOLDERS = ResultsResource(state_dir="/own")
OTHER_FOLDERS = ResultsResource(state_dir="/other")
MORE = {"execution.trigger-interval": "2 s"}


def _settings(defs: Definitions) -> tuple[str | None, str | None, dict[str, str]]:
    """Broker, state folder and all other settings; those of the resources beside it are the same."""
    resources = dict(defs.resources or {})
    flowcore = resources["flowcore"]
    assert (resources["kafka"], resources["results"]) == (flowcore.kafka, flowcore.results)
    return flowcore.kafka.bootstrap_servers, flowcore.results.state_dir, flowcore.more


@pytest.mark.parametrize(
    ("kafka", "results", "broker", "state_dir"),
    [
        (None, None, "own:1", "/own"),
        (OTHER_BROKER, None, "other:1", "/own"),
        (None, OTHER_FOLDERS, "own:1", "/other"),
        (OTHER_BROKER, OTHER_FOLDERS, "other:1", "/other"),
    ],
    ids=["neither", "broker", "folders", "both"],
)
def test_broker_and_folders_replace_those_of_all_settings(
    kafka: KafkaResource | None, results: ResultsResource | None, broker: str, state_dir: str
) -> None:
    """The other settings stay."""
    flowcore = FlowcoreResource(kafka=BROKER, results=FOLDERS, more=MORE)
    defs = definitions(kafka=kafka, results=results, flowcore=flowcore)

    assert _settings(defs) == (broker, state_dir, MORE)


def test_broker_without_all_settings_is_beside_the_environment() -> None:
    """What is not given stays unset."""
    assert _settings(definitions(kafka=OTHER_BROKER)) == ("other:1", None, {})


class OwnResource(FlowcoreResource):
    """All settings of a project, with a field of its own."""

    region: str = ""


def test_resource_of_a_project_keeps_its_class_and_fields() -> None:
    """Its methods may be its own, too."""
    given = OwnResource(kafka=BROKER, more=MORE, region="eu")
    combined = dict(definitions(kafka=OTHER_BROKER, flowcore=given).resources or {})["flowcore"]

    assert (type(combined), combined.region) == (OwnResource, "eu")
    assert (combined.kafka, combined.more) == (OTHER_BROKER, MORE)


def test_variables_stay_variables_when_resources_are_combined() -> None:
    """Of a variable Dagster stores the name only."""
    flowcore = FlowcoreResource(more={"execution.trigger-interval": EnvVar("INTERVAL")})
    kafka = KafkaResource(password=EnvVar("KAFKA_PASSWORD"))
    combined = dict(definitions(kafka=kafka, flowcore=flowcore).resources or {})["flowcore"]

    assert isinstance(combined.more["execution.trigger-interval"], EnvVar)
    assert isinstance(combined.kafka.password, EnvVar)


@pytest.mark.parametrize("literal", ["kafka", "replaced", "more"])
def test_literal_secret_in_any_of_several_resources_is_refused(literal: str) -> None:
    """Also in a broker that another one replaces: it is in the code all the same."""
    secret = KafkaResource(password="s3cret")  # noqa: S106
    kafka = secret if literal == "kafka" else OTHER_BROKER
    flowcore = FlowcoreResource(
        kafka=secret if literal == "replaced" else BROKER,
        more={"kafka.sasl.password": "s3cret"} if literal == "more" else {},
    )
    with pytest.raises(SettingsError) as refused:
        definitions(kafka=kafka, flowcore=flowcore)

    assert "s3cret" not in str(refused.value)
