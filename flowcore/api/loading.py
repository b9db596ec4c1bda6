"""Loading a flow that a text such as ``my_flows.sales:flow`` names."""

from __future__ import annotations

import importlib
from pathlib import Path

from flowcore.api.flow import Flow
from flowcore.errors import ConfigurationError, PlanError

__all__ = ["load_flow"]


def load_flow(text: str) -> Flow:
    """Import a module and return one of its flows.

    Args:
        text: ``MODULE:FLOW``, the flow being the name of a variable.

    Raises:
        ConfigurationError: The text is not of this form, or there is no such module.
        PlanError: The module has no such flow, or the flow in it cannot be declared.
    """
    module_name, _, attribute = text.partition(":")
    if not module_name or not attribute:
        msg = f"{text!r} is not MODULE:FLOW; pass for instance my_flows.sales:flow"
        raise ConfigurationError(msg)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        msg = f"there is no module {module_name!r} in {Path.cwd()} or on PYTHONPATH"
        raise ConfigurationError(msg) from error
    found = getattr(module, attribute, None)
    if not isinstance(found, Flow):
        flows = [name for name, item in vars(module).items() if isinstance(item, Flow)]
        has = ", ".join(flows) or "none"
        msg = f"module {module_name!r} has no flow {attribute!r}; its flows are: {has}"
        raise PlanError(msg)
    return found
