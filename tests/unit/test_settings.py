"""Settings are read from defaults, environment and keys, later ones winning; a wrong one is explained."""

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.errors import SettingsError
from flowcore.settings import Settings, keys, parse_duration


def _of(**pairs: object) -> Settings:
    return Settings.of({key.replace("_", "."): value for key, value in pairs.items()}, environment={})


def test_settings_have_a_default_for_every_key() -> None:
    """Nothing has to be set, and every key says what it means."""
    assert Settings.of(environment={}) == Settings()
    assert all(keys().values())


def test_settings_later_ones_win() -> None:
    """Default < environment < first mapping < second."""
    environment = {
        "FLOWCORE_DATA_DIR": "/env",
        "FLOWCORE_STATE_DIR": "/env",
        "FLOWCORE_KAFKA_BOOTSTRAP_SERVERS": "e:1",
    }

    settings = Settings.of(
        {"data.dir": "/set", "state.dir": "/set"}, {"data.dir": "/last"}, environment=environment
    )

    assert settings.data_dir == Path("/last")
    assert settings.state_dir == Path("/set")
    assert settings.bootstrap_servers == "e:1"


def test_settings_environment_name_follows_from_the_key() -> None:
    """Points and dashes become underscores."""
    settings = Settings.of(environment={"FLOWCORE_EXECUTION_TRIGGER_INTERVAL": "2 s"})

    assert settings.trigger_interval == timedelta(seconds=2)


def test_settings_for_spark_pass_as_they_are() -> None:
    """Whatever begins with spark. is Spark's."""
    settings = Settings.of({"spark.master": "spark://host:7077", "spark.any.thing": 3}, environment={})

    assert dict(settings.spark) == {"spark.master": "spark://host:7077", "spark.any.thing": "3"}


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("execution.triger-interval", "execution.trigger-interval"),
        ("state_dir", "state.dir"),
    ],
)
def test_settings_unknown_key_suggests_the_nearest(key: str, near: str) -> None:
    """A typing error would else have no effect and no message."""
    with pytest.raises(SettingsError, match=rf"{key}='x' does not exist.*did you mean '{near}'\?"):
        Settings.of({key: "x"}, environment={})


def test_settings_unknown_key_with_nothing_near_lists_all() -> None:
    """Then the message is the documentation."""
    with pytest.raises(SettingsError) as caught:
        Settings.of({"zzz": "x"}, environment={})

    assert all(key in str(caught.value) for key in keys())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("execution.trigger-interval", "soon"),
        ("execution.trigger-interval", "-1 s"),
        ("execution.trigger-interval", "5"),
        ("execution.trigger-interval", 5),
        ("execution.trigger-interval", timedelta(seconds=-1)),
        ("execution.trigger-interval", "99999999999999 d"),
        ("execution.max-records-per-batch", "0"),
        ("execution.max-records-per-batch", "many"),
        ("execution.shuffle-partitions", None),
        ("execution.short-lived", "yes"),
        ("state.dir", None),
        ("execution.realtime.batch-duration", "4 s"),
    ],
)
def test_settings_refuse_a_value_of_another_kind(key: str, value: object) -> None:
    """The message names the key and what was given."""
    with pytest.raises(SettingsError, match=key):
        Settings.of({key: value}, environment={})


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("500 ms", 500), ("10s", 10_000), ("1.5 sec", 1500), ("5 min", 300_000), ("2m", 120_000),
        ("1H", 3_600_000), ("2 d", 172_800_000), ("0", 0), (" 0.0 ", 0), (0, 0),
    ],
)  # fmt: skip
def test_duration_is_a_number_with_a_unit(text: str, milliseconds: int) -> None:
    """As Flink and Spark write them."""
    assert parse_duration(text) == timedelta(milliseconds=milliseconds)


@given(st.integers(0, 10**9))
def test_duration_in_any_unit_is_the_same_time(number: int) -> None:
    """A unit is a factor."""
    assert parse_duration(f"{number} s") == parse_duration(f"{number * 1000}ms") == timedelta(seconds=number)
