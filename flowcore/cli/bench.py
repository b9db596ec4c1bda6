"""`flowcore bench`: the benchmarks of a checkout. Each is a module in tests/benchmarks."""

import importlib.util
import signal
import sys
from pathlib import Path

import click

from flowcore.errors import ConfigurationError

__all__ = ["bench"]


class _Benchmarks(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(
            path.stem.replace("_", "-") for path in _folder().glob("*.py") if not path.stem.startswith("_")
        )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        stem = cmd_name.replace("-", "_")
        spec = importlib.util.spec_from_file_location(f"benchmark_{stem}", _folder() / f"{stem}.py")
        if spec is None or spec.loader is None:
            return None
        sys.path.insert(0, str(_folder().parent.parent))
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        command = module.command
        assert isinstance(command, click.Command)  # noqa: S101 - a fact for the type checker
        return command


def _folder() -> Path:
    for place in (Path.cwd(), *Path.cwd().parents, Path(__file__).parents[2]):
        if (place / "tests" / "benchmarks").is_dir():
            return place / "tests" / "benchmarks"
    msg = (
        f"{Path.cwd()} is not in a checkout of flowcore: an installed package has no benchmarks; run this "
        "command in a checkout"
    )
    raise ConfigurationError(msg)


@click.command(cls=_Benchmarks)
def bench() -> None:
    """Measure flowcore, most often against an alternative in the same run, and check the results.

    \b
    Examples:
      flowcore bench join
      flowcore bench join --bids 200000 --rounds 1 --json
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what a benchmark has started ends too
