"""No error, and nothing that is printed, contains the value of a secret."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from flowcore.cli.flow_argument import name_and_settings
from flowcore.errors import SettingsError
from flowcore.kafka.security import Security
from flowcore.settings import Settings, is_spark_secret, keys, refuse_secrets, secret_keys

CANARY = "4711canary"
PASSWORD = "kafka.sasl.password"  # noqa: S105 - a key


@click.command()
@name_and_settings
def _show(flow: str, settings: Settings) -> None:
    click.echo(f"{flow} {settings!r}")


def _from_file(text: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        (folder / "flow.toml").write_text(text)
        return Settings.of(file=folder / "flow.toml", environment={})

    return read


def _of(pairs: dict[str, object], **environment: str) -> Callable[[Path], object]:
    return lambda _: Settings.of(pairs, environment=environment)


def _command(*arguments: str) -> Callable[[Path], object]:
    def run(_: Path) -> object:
        done = CliRunner().invoke(_show, ["f", *arguments])
        assert done.exception is not None
        if isinstance(done.exception, SystemExit):  # click has printed its error
            raise SettingsError(done.output)
        raise done.exception

    return run


def _security(**login: str) -> Callable[[Path], object]:
    return lambda _: Security(password=CANARY, **login)


@pytest.mark.parametrize(
    "attempt",
    [
        _of({PASSWORD: [CANARY]}),
        _of({PASSWORD: {"value": CANARY}}),
        _of({"kafka.sasl.pasword": CANARY}),
        _of({"sasl.password": CANARY}),
        _of({f"{PASSWORD}.file": CANARY}),
        _of({f"{PASSWORD}.file": [CANARY]}),
        _of({}, FLOWCORE_KAFKA_SASL_PASWORD=CANARY),
        _of({"metrics.dagster.url": f"http://ann:{CANARY}@host"}),
        _from_file(f"{PASSWORD} = {CANARY}"),
        _from_file(f"{PASSWORD} = '{CANARY}"),
        _from_file(f"kafka.sasl.passwort = '{CANARY}'"),
        _from_file(f"'{PASSWORD}' = '{CANARY}'\nkafka.sasl.password = '{CANARY}'"),
        _command("--set", f"{PASSWORD}={CANARY}"),
        _command("--set", f"{PASSWORD}:{CANARY}"),
        _command("--set", f"spark.hadoop.fs.s3a.secret.key={CANARY}"),
        _command("--set", f"kafka.sasl.pass={CANARY}"),
        _security(),
        _security(protocol="SASL_SSL", mechanism="PLAIN"),
        _security(protocol="SASL_SSL", mechanism="PLAIN", username="a\n"),
        _security(protocol="SASL_SSL", mechanism="NONE", username="a"),
    ],
)  # fmt: skip
def test_error_about_settings_contains_no_secret(attempt: Callable[[Path], object], tmp_path: Path) -> None:
    """Neither its message nor its traceback, with the errors that it was raised from."""
    with pytest.raises(SettingsError) as caught:
        attempt(tmp_path)

    assert CANARY not in "".join(traceback.format_exception(caught.value))
    assert str(caught.value)


def test_settings_show_no_secret() -> None:
    """Keys of Spark's may be secret too."""
    settings = Settings.of(
        {**dict.fromkeys(secret_keys(), CANARY), "spark.authenticate.secret": CANARY}, environment={}
    )

    assert CANARY not in repr(settings)
    assert settings.spark == {"spark.authenticate.secret": CANARY}


@pytest.mark.parametrize("key", secret_keys())
@pytest.mark.parametrize("text", [f"{CANARY}\n", f"{CANARY}\r\n", CANARY])
def test_secret_may_be_in_a_file(key: str, text: str, tmp_path: Path) -> None:
    """The end of its line, which an editor adds, does not count."""
    path = tmp_path / "secret"
    path.write_text(text)
    variable = f"FLOWCORE_{re.sub('[.-]', '_', key).upper()}_FILE"

    assert Settings.of({f"{key}.file": path}, environment={}) == Settings.of({key: CANARY}, environment={})
    assert Settings.of(environment={variable: str(path)}) == Settings.of({key: CANARY}, environment={})
    assert f"{key}.file" in keys()


def test_empty_secret_file_is_refused_by_its_name(tmp_path: Path) -> None:
    """The broker would refuse the login, and not say why."""
    path = tmp_path / "secret"
    path.write_text("\n")

    with pytest.raises(SettingsError, match=rf"password\.file='{path}' cannot be used.*it is empty"):
        Settings.of({f"{PASSWORD}.file": path}, environment={})


def test_refusal_of_a_secret_names_the_ways_to_pass_it() -> None:
    """They are a variable and a file."""
    done = CliRunner().invoke(_show, ["f", "--set", f"{PASSWORD}={CANARY}"])

    assert "set the variable FLOWCORE_KAFKA_SASL_PASSWORD" in str(done.exception)
    assert "kafka.sasl.password.file" in str(done.exception)
    with pytest.raises(SettingsError, match="write it to a settings file"):
        refuse_secrets({"spark.ssl.keyPassword": "x"}, secret_keys(), "--set", "others")


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        ("spark.authenticate.secret", True),
        ("spark.ssl.keyPassword", True),
        ("spark.hadoop.fs.s3a.access.key", True),
        ("spark.hadoop.fs.s3a.session.token", True),
        ("spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net", True),
        ("spark.hadoop.fs.azure.sas.bids.shop.blob.core.windows.net", True),
        ("spark.hadoop.fs.s3a.encryption.key", True),
        ("spark.hadoop.fs.gs.auth.service.account.private.key", True),
        ("spark.ssl.keyPassphrase", True),
        ("spark.executorEnv.AWS_ACCESS_KEY_ID", True),
        ("spark.executorEnv.MAIL_API_KEY", True),
        ("spark.executorEnv.KAFKA_PASS", True),
        ("spark.kafka.clusters.a.kafka.sasl.jaas.config", True),
        ("spark.kafka.clusters.a.kafka.ssl.keystore.key", True),
        ("spark.sql.catalog.lake.credential", True),
        ("spark.sql.catalog.lake.header.Authorization", True),
        ("spark.jdbc.passwd", True),
        ("spark.executorEnv.DB_PWD", True),
        ("spark.redis.auth", True),
        ("spark.hadoop.fs.s3a.aws.credentials.provider", False),
        ("spark.security.credentials.hive.enabled", False),
        ("spark.kerberos.renewal.credentials", False),
        ("spark.executorEnv.GOOGLE_CREDENTIALS", True),
        ("spark.hadoop.hadoop.security.authorization", False),
        ("spark.sql.optimizer.bypass", False),
        ("spark.io.encryption.keySizeBits", False),
        ("spark.io.encryption.enabled", False),
        ("spark.hadoop.hadoop.security.credential.provider.path", False),
        ("spark.authenticate.secret.file", False),
        ("spark.authenticate", False),
        ("spark.driver.memory", False),
        ("kafka.sasl.password", False),
    ],
)
def test_secrets_of_spark_are_known_by_their_keys(key: str, *, secret: bool) -> None:
    """By Spark's own pattern and the names of object stores, except for names of files."""
    assert is_spark_secret(key) is secret


@pytest.mark.parametrize(
    ("value", "secret"),
    [
        ("mongodb://ann:s3cret@host:27017/bids", True),
        ('org.apache.kafka.common.security.plain.PlainLoginModule required password="x";', True),
        ("-----BEGIN PRIVATE KEY-----", True),
        ("http://host:80/a@b", False),
        ("hdfs://host/passwords", False),
    ],
)
def test_secrets_of_spark_are_known_by_what_they_look_like(value: str, *, secret: bool) -> None:
    """Whatever their key; values of other programs' keys are not looked at."""
    assert is_spark_secret("spark.my.option", value) is secret
    assert not is_spark_secret("my.option", value)
