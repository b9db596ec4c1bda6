"""`MODULE:FLOW` or a flow's name, `--settings FILE`, `--set key=value`: what commands have in common."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from flowcore.errors import PlanError
from flowcore.graph.flow import Flow
from flowcore.settings import FILE_VARIABLE, Settings

__all__ = ["flow_and_settings", "name_and_settings"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


class _FlowType(click.ParamType[Flow]):
    name = "MODULE:FLOW"

    def convert(self, value: str | Flow, param: click.Parameter | None, ctx: click.Context | None) -> Flow:
        if isinstance(value, Flow):
            return value
        module_name, _, attribute = value.partition(":")
        if not module_name or not attribute:
            self.fail(f"{value!r} is not MODULE:FLOW; pass for instance my_flows.sales:flow", param, ctx)
        sys.path.insert(0, str(Path.cwd()))
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not module_name.startswith(error.name):
                raise
            self.fail(f"there is no module {module_name!r} in {Path.cwd()} or on PYTHONPATH", param, ctx)
        found = getattr(module, attribute, None)
        if not isinstance(found, Flow):
            flows = [name for name, item in vars(module).items() if isinstance(item, Flow)]
            has = ", ".join(flows) or "none"
            msg = f"module {module_name!r} has no flow {attribute!r}; its flows are: {has}"
            raise PlanError(msg)
        return found


class _NameType(click.ParamType[str]):
    name = "FLOW"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return _FlowType().convert(value, param, ctx).name if ":" in value else value


class _Setting(click.ParamType[tuple[str, str]]):
    name = "KEY=VALUE"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        key, equals, text = value.partition("=")
        if not key or not equals:
            self.fail(f"{value!r} is not KEY=VALUE", param, ctx)
        return key, text


def flow_and_settings(command: _Command) -> _Command:
    """Give a command the arguments ``flow`` and ``settings``."""
    return click.argument("flow", type=_FlowType())(_with_settings(command))


def name_and_settings(command: _Command) -> _Command:
    """Give a command the arguments ``flow``, which is a flow's name, and ``settings``."""
    return click.argument("flow", type=_NameType())(_with_settings(command))


def _with_settings(command: _Command) -> _Command:
    @functools.wraps(command)
    def read(*, pairs: tuple[tuple[str, str], ...], file: Path | None, **others: Any) -> Any:
        return command(settings=Settings.of(dict(pairs), file=file, origin="--set"), **others)

    setting = click.option(
        "--set",
        "pairs",
        type=_Setting(),
        multiple=True,
        help="A setting, for instance kafka.bootstrap.servers=127.0.0.1:9092 or spark.driver.memory=4g.",
    )
    file = click.option(
        "--settings",
        "file",
        type=click.Path(path_type=Path),
        envvar=FILE_VARIABLE,
        show_envvar=True,
        help="A TOML file of settings; environment variables and --set win over it.",
    )
    return cast("_Command", setting(file(read)))
