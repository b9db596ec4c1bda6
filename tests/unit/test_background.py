"""Failures of work that repeats are logged once for each kind."""

import logging

import pytest

from flowcore.background import LoggedFailures

_LOG = logging.getLogger(__name__)


def test_another_error_is_logged_though_work_fails_already(caplog: pytest.LogCaptureFixture) -> None:
    """It may be the one that matters: of each row of errors of a type, one is there, and the success."""
    failures = LoggedFailures(_LOG, "failed", "works again")
    for error in (OSError("full"), OSError("full"), RuntimeError("lease"), RuntimeError("lease"), None, None):
        with failures:
            if error is not None:
                raise error

    assert [record.getMessage() for record in caplog.records] == ["failed", "failed", "works again"]
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["full", "lease"]
