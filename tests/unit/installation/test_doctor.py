"""`flowcore doctor` says what is missing, and the command that installs it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from flowcore.cli.doctor import doctor
from flowcore.installation.jars import jars


def test_doctor_fails_and_names_the_command_when_java_is_missing() -> None:
    """Each failed row names its fix, and a missing requirement gives exit code 1."""
    answer = CliRunner().invoke(doctor, ["--json"])

    assert answer.exit_code == 1
    rows = {row["name"]: row for row in json.loads(answer.stdout)}
    assert rows["Python"]["status"] == "ok"
    assert rows["Java"]["status"] == rows["Connector jars"]["status"] == "missing"
    assert rows["Class archive"]["status"] == "warn"
    assert all(row["mend"] for row in rows.values() if row["status"] != "ok")


@pytest.mark.usefixtures("with_jars")
def test_doctor_says_which_jar_was_changed() -> None:
    """A changed jar is as bad as a missing one."""
    jars("connector")[0].write_bytes(b"evil")

    answer = CliRunner().invoke(doctor, ["--json"])

    rows = {row["name"]: row for row in json.loads(answer.stdout)}
    assert answer.exit_code == 1
    assert rows["Connector jars"]["status"] == "missing"
    assert "kafka-clients-3.9.2.jar has the SHA-256" in rows["Connector jars"]["found"]
    assert rows["Connector jars"]["mend"].endswith("then delete that folder and run: flowcore setup")
    assert rows["Broker jars"]["status"] == "ok"
