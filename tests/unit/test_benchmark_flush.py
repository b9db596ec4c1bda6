"""Options of `flowcore bench flush` are obeyed or refused."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from tests.benchmarks import flush


@pytest.mark.parametrize("option", ["--records", "--small", "--large"])
def test_option_that_the_case_would_ignore_is_refused(option: str) -> None:
    """A run of hours would otherwise measure something else than was asked for."""
    done = CliRunner().invoke(flush.command, ["--case", "keys", option, "20000"])

    assert done.exit_code == click.UsageError.exit_code
    assert f"{option} is an option of --case intervals" in done.output
