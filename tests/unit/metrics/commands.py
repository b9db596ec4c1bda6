"""Commands that tests run in their own process."""

from click.testing import CliRunner

from flowcore.cli.main import flowcore

__all__ = ["call"]


def call(*arguments: str) -> tuple[int, str, str]:
    """Run a command; return exit code, output and errors."""
    found = CliRunner().invoke(flowcore, arguments)
    error = str(found.exception) if found.exception and not isinstance(found.exception, SystemExit) else ""
    return found.exit_code, found.stdout, error or found.stderr
