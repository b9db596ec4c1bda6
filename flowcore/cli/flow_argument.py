"""Arguments that several commands share: `MODULE:FLOW` or a flow's name, `--settings` and `--set`."""

import contextlib
import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from flowcore.api.flow import Flow
from flowcore.api.loading import load_flow
from flowcore.errors import FlowNotFoundError, StateError
from flowcore.settings import FILE_VARIABLE, Settings, refuse_secrets, secret_keys
from flowcore.spark.run.private import private_files

__all__ = ["find_checkpoints", "flow_and_settings", "flow_or_name_and_settings", "name_and_settings"]

_Command = TypeVar("_Command", bound=Callable[..., Any])
_KEY = re.compile(r"[a-zA-Z.-]*")


class _FlowType(click.ParamType[Flow]):
    name = "MODULE:FLOW"

    def convert(self, value: str | Flow, param: click.Parameter | None, ctx: click.Context | None) -> Flow:
        if isinstance(value, Flow):
            return value
        if ":" in value:
            sys.path.insert(0, str(Path.cwd()))
        try:
            # What a module prints is not the command's output, which may be JSON.
            with contextlib.redirect_stdout(sys.stderr):
                return load_flow(value)
        except FlowNotFoundError as error:  # others mean that the flow itself is wrong
            self.fail(str(error), param, ctx)


class _NameType(click.ParamType[str]):
    name = "FLOW"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return _FlowType().convert(value, param, ctx).name if ":" in value else value


class _FlowOrNameType(click.ParamType["Flow | str"]):
    name = "FLOW"

    def convert(
        self, value: str | Flow, param: click.Parameter | None, ctx: click.Context | None
    ) -> Flow | str:
        return _FlowType().convert(value, param, ctx) if isinstance(value, Flow) or ":" in value else value


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        # What follows a key by another sign than = may be a secret.
        start = _KEY.match(text)
        msg = f"{start[0] if start else ''!r} is not KEY=VALUE: there is no = after the key"
        raise click.BadParameter(msg)
    return key, value


def flow_and_settings(command: _Command) -> _Command:
    """Add the arguments ``flow``, a flow, and ``settings`` to a command."""
    return click.argument("flow", type=_FlowType())(_with_settings(command))


def name_and_settings(command: _Command) -> _Command:
    """Add the arguments ``flow``, a flow's name, and ``settings`` to a command."""
    return click.argument("flow", type=_NameType())(_with_settings(command))


def flow_or_name_and_settings(command: _Command) -> _Command:
    """Add the arguments ``flow``, a flow or the name of one that runs elsewhere, and ``settings``."""
    return click.argument("flow", type=_FlowOrNameType())(_with_settings(command))


def _with_settings(command: _Command) -> _Command:
    @functools.wraps(command)
    def read(*, pairs: tuple[tuple[str, str], ...], file: Path | None, **others: Any) -> Any:
        given = dict(pairs)
        refuse_secrets(given, secret_keys(), "--set", "every user of this machine")
        settings = Settings.of(given, file=file, origin="--set")
        with private_files(settings.umask):
            return command(settings=settings, **others)

    setting = click.option(
        "--set",
        "pairs",
        type=_setting,
        metavar="KEY=VALUE",
        multiple=True,
        help="A setting, for instance kafka.bootstrap.servers=127.0.0.1:9092 or spark.driver.memory=4g. "
        "May be repeated.",
    )
    file = click.option(
        "--settings",
        "file",
        type=click.Path(path_type=Path),
        envvar=FILE_VARIABLE,
        show_envvar=True,
        help="A TOML file of settings. Environment variables and --set override it.",
    )
    return cast("_Command", setting(file(read)))


def find_checkpoints(flow: str, settings: Settings) -> list[Path]:
    """The checkpoints of a flow's live queries that were used.

    Raises:
        StateError: There are none.
    """
    folder = settings.state_dir.absolute() / flow / "checkpoints"
    found = sorted(path.parent for path in folder.glob("*/metadata"))
    if not found:
        msg = (
            f"flow {flow!r} has no checkpoint in {folder}: it has no state; run the flow first, or "
            "pass its folder, --set state.dir=..."
        )
        raise StateError(msg)
    return found
