"""Settings are read from defaults, environment and keys; later sources override earlier ones."""

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from flowcore import Flow
from flowcore.cli.flow_argument import flow_and_settings
from flowcore.durations import show_duration
from flowcore.errors import SettingsError
from flowcore.settings import Settings, keys, parse_duration


def _of(**pairs: object) -> Settings:
    return Settings.of({key.replace("_", "."): value for key, value in pairs.items()}, environment={})


def test_settings_have_a_default_for_every_key() -> None:
    """No setting is required, and every key has a description."""
    assert Settings.of(environment={}) == Settings()
    assert all(keys().values())


def test_later_settings_override_earlier_ones() -> None:
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
    """Dots and dashes become underscores."""
    settings = Settings.of(environment={"FLOWCORE_EXECUTION_TRIGGER_INTERVAL": "2 s"})

    assert settings.trigger_interval == timedelta(seconds=2)


def test_settings_for_spark_pass_as_they_are() -> None:
    """Keys that begin with spark. are passed to Spark."""
    settings = Settings.of({"spark.master": "spark://host:7077", "spark.any.thing": 3}, environment={})

    assert dict(settings.spark) == {"spark.master": "spark://host:7077", "spark.any.thing": "3"}


@pytest.mark.parametrize(
    ("text", "size"),
    [("64 MiB", 64 << 20), ("2g", 2 << 30), ("10 KiB", 10_240), ("700", 700), (700, 700)],
)
def test_settings_size_may_have_a_unit(text: str | int, size: int) -> None:
    """Units are powers of 1024."""
    assert Settings.of({"state.cache.max-bytes": text}, environment={}).max_cache_bytes == size


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("execution.triger-interval", "execution.trigger-interval"),
        ("state_dir", "state.dir"),
        ("pipeline.force-timestamps-support", "pipeline.force-timestamp-support"),
        ("metrics.latency-interval", "metrics.latency.interval"),
    ],
)
def test_settings_unknown_key_suggests_the_nearest(key: str, near: str) -> None:
    """A mistyped key would otherwise have no effect and no message."""
    with pytest.raises(SettingsError, match=rf"{key} does not exist.*did you mean '{near}'\?"):
        Settings.of({key: "x"}, environment={})


def test_settings_unknown_key_with_nothing_near_lists_all() -> None:
    """Without a similar key the message lists all keys."""
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
        ("state.cache.max-bytes", "0"),
        ("state.cache.max-bytes", "1.5 GiB"),
        ("state.cache.max-bytes", "64 MB"),
        ("execution.short-lived", "yes"),
        ("state.dir", None),
        ("state.dir", ""),
        ("kafka.security.protocol", "foo"),
        ("kafka.sasl.mechanism", "X"),
        ("execution.realtime.batch-duration", "4 s"),
        ("kafka.answer-timeout", "1 s"),
        ("execution.shuffle-partitions", True),
        ("execution.shuffle-partitions", 1.5),
        ("kafka.bootstrap.servers", ["a:1"]),
        ("pipeline.force-timestamp-support", 0),
        ("pipeline.auto-watermark-interval", "200"),
        ("metrics.latency.interval", "1 fortnight"),
        ("metrics.latency.interval", "0.1 ms"),
        ("metrics.prometheus.port", "65536"),
        ("metrics.prometheus.port", -1),
        ("metrics.prometheus.port", True),
        ("metrics.prometheus.port", "9473-9464"),
        ("metrics.prometheus.port", "0-9464"),
        ("metrics.prometheus.port", "9464-65536"),
        ("metrics.prometheus.port", "9464-"),
        ("metrics.prometheus.port", "9464-9470-9473"),
        ("metrics.dagster.url", "dagster:3000"),
    ],
)
def test_settings_refuse_a_value_of_another_kind(key: str, value: object) -> None:
    """The message names the key and the given value."""
    with pytest.raises(SettingsError, match=key):
        Settings.of({key: value}, environment={})


def test_settings_say_what_a_number_must_be() -> None:
    """Not what Python says of int()."""
    with pytest.raises(
        SettingsError, match=r"state.key-groups='1\.5' .*: it must be a whole number above zero"
    ):
        Settings.of({"state.key-groups": "1.5"}, environment={})


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("500 ms", 500), ("10s", 10_000), ("1.5 sec", 1500), ("5 min", 300_000), ("2m", 120_000),
        ("1H", 3_600_000), ("2 d", 172_800_000), ("0", 0), (" 0.0 ", 0), (0, 0),
    ],
)  # fmt: skip
def test_duration_is_a_number_with_a_unit(text: str, milliseconds: int) -> None:
    """The notation is that of Flink and Spark."""
    assert parse_duration(text) == timedelta(milliseconds=milliseconds)


@given(st.integers(0, 10**9))
def test_duration_in_any_unit_is_the_same_time(number: int) -> None:
    """A unit is a factor."""
    assert parse_duration(f"{number} s") == parse_duration(f"{number * 1000}ms") == timedelta(seconds=number)


@given(st.integers(0, 10**12))
def test_duration_shown_is_read_again(number: int) -> None:
    """A duration printed in a plan is a valid setting."""
    length = timedelta(milliseconds=number)

    assert parse_duration(show_duration(length)) == length


def test_duration_that_is_too_long_is_an_error_of_its_value() -> None:
    """Commands and settings say so in one line."""
    with pytest.raises(ValueError, match="a duration is at most 999999999 d"):
        parse_duration("9999999999 d")


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0"), (200, "200 ms"), (1000, "1 s"), (90_000, "90 s"), (86_400_000, "1 d"), (0.5, "0.5 ms")],
)
def test_duration_is_shown_in_its_largest_whole_unit(milliseconds: float, text: str) -> None:
    """It is shown as 200 ms, not as 0.2 s."""
    assert show_duration(timedelta(milliseconds=milliseconds)) == text


TABLES = """
[pipeline]
force-timestamp-support = false
auto-watermark-interval = 0
[metrics]
latency.interval = "1 s"
[spark]
master = "local[2]"
sql.ansi.enabled = true
"""
WHOLE_KEYS = """
pipeline.force-timestamp-support = false
"pipeline.auto-watermark-interval" = "0 ms"
"metrics.latency.interval" = "1000 ms"
"spark.master" = "local[2]"
"spark.sql.ansi.enabled" = true
"""


def _file(folder: Path, text: str) -> Path:
    path = folder / "flow.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", [TABLES, WHOLE_KEYS], ids=["tables", "whole-keys"])
def test_settings_file_has_tables_or_whole_keys(text: str, tmp_path: Path) -> None:
    """Both notations of TOML are equivalent."""
    settings = Settings.of(file=_file(tmp_path, text), environment={})

    assert settings == Settings(
        force_timestamp_support=False,
        auto_watermark_interval=timedelta(0),
        latency_interval=timedelta(seconds=1),
        spark={"spark.master": "local[2]", "spark.sql.ansi.enabled": "true"},
    )


def test_settings_are_defaults_then_file_then_environment_then_what_is_passed(tmp_path: Path) -> None:
    """Each source overrides the previous one, key by key."""
    file = _file(tmp_path, "data.dir = 'file'\nstate.dir = 'file'\nmetrics.latency.interval = '1 s'")
    environment = {"FLOWCORE_STATE_DIR": "environment", "FLOWCORE_METRICS_LATENCY_INTERVAL": "2 s"}

    settings = Settings.of({"metrics.latency.interval": "3 s"}, file=file, environment=environment)

    assert settings.auto_watermark_interval == timedelta(milliseconds=200)
    assert settings.data_dir == Path("file")
    assert settings.state_dir == Path("environment")
    assert settings.latency_interval == timedelta(seconds=3)


def test_settings_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    """A scheduler can name it this way; a file that is passed is read instead."""
    named = {"FLOWCORE_SETTINGS": str(_file(tmp_path, "data.dir = 'named'"))}
    (tmp_path / "other.toml").write_text("data.dir = 'passed'")

    assert Settings.of(environment=named).data_dir == Path("named")
    assert Settings.of(file=tmp_path / "other.toml", environment=named).data_dir == Path("passed")


def test_settings_environment_takes_the_exact_key_too() -> None:
    """The form with FLOWCORE_ wins where both are set."""
    exact = {"pipeline.force-timestamp-support": "false"}
    both = {"FLOWCORE_PIPELINE_FORCE_TIMESTAMP_SUPPORT": "true", **exact}

    assert Settings.of(environment=exact).force_timestamp_support is False
    assert Settings.of(environment=both).force_timestamp_support is True


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("FLOWCORE_PIPELINE_FORCE_TIMESTAMPS_SUPPORT", "FLOWCORE_PIPELINE_FORCE_TIMESTAMP_SUPPORT"),
        ("pipeline.auto-watermarks-interval", "pipeline.auto-watermark-interval"),
        ("FLOWCORE_SETTING", "FLOWCORE_SETTINGS"),
    ],
)
def test_settings_slip_in_a_variable_suggests_the_nearest(name: str, near: str) -> None:
    """A mistyped variable would otherwise have no effect."""
    with pytest.raises(SettingsError, match=rf"{name} .*environment.*did you mean '{near}'"):
        Settings.of(environment={name: "x"})


def test_renamed_settings_are_errors_that_have_the_new_name() -> None:
    """In a variable, too, whose former name is not close to the new one."""
    with pytest.raises(SettingsError, match=r"did you mean 'execution.result-visibility'"):
        Settings.of({"execution.hand-over": "whole"}, environment={})
    with pytest.raises(
        SettingsError, match=r"environment variable FLOWCORE_EXECUTION_HAND_OVER.*did you mean"
    ):
        Settings.of(environment={"FLOWCORE_EXECUTION_HAND_OVER": "pipelined"})


def test_settings_ignore_other_variables() -> None:
    """Variables of flowcore that are not settings, of a cluster, and of other programs are ignored."""
    others = [
        "FLOWCORE_CACHE",
        "FLOWCORE_KAFKA_IMAGE",
        "FLOWCORE_SERVICE_HOST",
        "FLOWCORE_PORT_80_TCP",
        "a.b",
    ]

    assert Settings.of(environment=dict.fromkeys([*others, "PIPELINE_FORCE"], "x")) == Settings()


@pytest.mark.parametrize("pair", [("metrics.latency.interval", "soon"), ("metrics.latency.intervals", "1 s")])
def test_settings_error_names_the_source_of_the_value(pair: tuple[str, str], tmp_path: Path) -> None:
    """The user must know which of three places to change."""
    key, value = pair
    name = f"FLOWCORE_{key.upper().replace('.', '_')}"
    file = _file(tmp_path, f"{key} = '{value}'")
    given: dict[str, Callable[[], Settings]] = {
        f"from file {file}": lambda: Settings.of(file=file, environment={}),
        name: lambda: Settings.of(environment={name: value}),
        "from --set": lambda: Settings.of({key: value}, environment={}, origin="--set"),
    }
    for place, read in given.items():
        with pytest.raises(SettingsError) as caught:
            read()
        assert place in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pipeline = ", "cannot be read: Invalid value"),
        ("[data]\ndir = 'a'\n", None),
        ("'data.dir' = 'a'\n[data]\ndir = 'b'\n", "data.dir is given twice"),
        ("data = 'a'", "setting data does not exist"),
    ],
)
def test_settings_file_with_wrong_content_is_refused(text: str, message: str | None, tmp_path: Path) -> None:
    """The error names its path; a second, valid file is accepted."""
    file = _file(tmp_path, text)
    if message is None:
        assert Settings.of(file=file, environment={}).data_dir == Path("a")
        return
    with pytest.raises(SettingsError, match=message) as caught:
        Settings.of(file=file, environment={})

    assert str(file) in str(caught.value)


def test_settings_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """This includes a file that only the environment names."""
    with pytest.raises(SettingsError, match=r"gone\.toml cannot be read: No such file"):
        Settings.of(environment={"FLOWCORE_SETTINGS": str(tmp_path / "gone.toml")})


@pytest.mark.parametrize(
    "content", ["kafka.sasl.password = 'canary'", "[kafka]\ncanary", "[kafka]\n" + "canary" * 900]
)
def test_content_in_place_of_the_settings_file_is_not_shown(content: str) -> None:
    """It may have secrets, and the error goes to the terminal and to Dagster's event log."""
    with pytest.raises(SettingsError, match=r"settings file cannot be read: .* pass the path") as caught:
        Settings.of(environment={"FLOWCORE_SETTINGS": content})

    assert "canary" not in str(caught.value)


def test_command_reads_file_environment_and_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is --settings, then FLOWCORE_..., then --set."""
    monkeypatch.setenv("FLOWCORE_STATE_DIR", "environment")
    file = _file(tmp_path, "data.dir = 'file'\nstate.dir = 'file'\nmetrics.latency.interval = '1 s'")

    @click.command()
    @flow_and_settings
    def show(flow: Flow, settings: Settings) -> None:
        click.echo(f"{flow.name} {settings.data_dir} {settings.state_dir} {settings.latency_interval}")

    arguments = ["pipelines.auctions.flow:flow", "--set", "metrics.latency.interval=3 s"]
    passed = CliRunner().invoke(show, [*arguments, "--settings", str(file)])
    named = CliRunner().invoke(show, arguments, env={"FLOWCORE_SETTINGS": str(file)})
    wrong = CliRunner().invoke(show, [*arguments, "--set", "metrics.latenci.interval=3 s"])

    assert passed.output == named.output == "auctions file environment 0:00:03\n"
    assert "(from --set)" in str(wrong.exception)


def test_every_setting_is_documented() -> None:
    """The docs have its key, its default and its description."""
    table = (Path(__file__).parents[3] / "docs" / "running.md").read_text()

    assert [
        key
        for key, meaning in keys().items()
        if not re.search(rf"\| `{key}` \|.*\| {re.escape(meaning)} \|", table)
    ] == []
