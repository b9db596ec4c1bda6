"""Import of a flow by ``MODULE:FLOW``, and the reports of what is wrong with a user's module.

A mistake in the module is reported with its place there, without the frames of flowcore and of the import
system. Does not know where modules are looked for: that is ``sys.path``.
"""

import importlib
import linecache
import re
import sysconfig
import traceback
from pathlib import Path, PurePath
from types import ModuleType
from typing import NoReturn

from flowcore.api.flow import Flow
from flowcore.errors import FlowcoreError, FlowNotFoundError, PlanError

__all__ = ["load_flow"]

_OWN = str(Path(__file__).parents[1])


def load_flow(text: str) -> Flow:
    """Import a module and return one of its flows, from ``MODULE:FLOW`` with the name of a variable.

    Raises:
        FlowNotFoundError: The text is not of this form, or there is no such module.
        PlanError: The module has no such flow, or cannot be imported.
        FlowcoreError: The flow in it cannot be declared; a note has the place in the module.
    """
    module_name, _, attribute = text.partition(":")
    if "/" in module_name or module_name.endswith(".py"):
        _refuse_path(PurePath(module_name), text, attribute or "flow")
    if not module_name or not attribute:
        example = f"{module_name}:flow" if module_name else "my_flows.sales:flow"
        msg = f"{text!r} is not MODULE:FLOW; pass for instance {example}, if the module has flow = Flow(...)"
        raise FlowNotFoundError(msg)
    found = getattr(_import(module_name), attribute, None)
    if not isinstance(found, Flow):
        _refuse_attribute(module_name, attribute, found)
    return found


def _refuse_path(path: PurePath, text: str, attribute: str) -> NoReturn:
    folder = path.parent if path.is_absolute() else PurePath()
    module = ".".join(path.relative_to(folder).with_suffix("").parts)
    where = f" in {folder}" if path.is_absolute() else ""
    msg = (
        f"{text!r} is a path: a flow is found by the name of its module, as Python imports it; "
        f"pass {module}:{attribute}{where}"
    )
    raise FlowNotFoundError(msg)


def _refuse_attribute(module_name: str, attribute: str, found: object) -> NoReturn:
    module = importlib.import_module(module_name)
    flows = [name for name, item in vars(module).items() if isinstance(item, Flow)]
    has = ", ".join(flows) or "none"
    msg = f"module {module_name!r} has no flow {attribute!r}; its flows are: {has}"
    if callable(found):
        msg += (
            f" ({attribute!r} is a function, and a command calls none: assign what it returns to a variable; "
            "its arguments can be read from the environment)"
        )
    raise PlanError(msg)


_HINTS = (
    ("got an unexpected keyword argument 'ties'", "only window(...).top_n(...) takes ties="),
    (
        "got an unexpected keyword argument 'flush'",
        "operators that emit what they read take no flush=; give it to one with state, such as aggregate",
    ),
    (
        "got an unexpected keyword argument 'allowed_lateness'",
        "only windows, join_interval and join_window take allowed_lateness=",
    ),
    ("takes 1 positional argument but", "its arguments have names, for instance by='id'"),
)
"""What Python says of a method of a stream, and what is meant."""


def _import(module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except FlowcoreError as error:
        error.add_note(f"declared at {_place(error)}")
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and _is_part(error.name, module_name):
            msg = (
                f"there is no module {module_name!r} in {Path.cwd()} or on PYTHONPATH; pass a module that "
                "exists, or run the command in the folder where its name begins"
            )
            raise FlowNotFoundError(msg) from error
        msg = (
            f"module {module_name!r} cannot be imported: {_cause(error)}, at {_place(error)}; so there is no "
            f"flow; correct that line (python -c 'import {module_name}' shows the whole traceback)"
        )
        raise PlanError(msg) from error


def _is_part(missing: str | None, module_name: str) -> bool:
    """Whether it is the module asked for, or one of its packages; not one that it imports."""
    return missing is not None and f"{module_name}.".startswith(f"{missing}.")


def _cause(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it ended Python (SystemExit: {error.code}), as a program that reads its own arguments does"
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    hints = (hint for pattern, hint in _HINTS if re.match(rf"\w*Stream\.\w+\(\) {pattern}", text))
    hint = next((f" ({hint})" for hint in hints), "")
    return f"{type(error).__name__}: {text}{hint}"


def _place(error: BaseException) -> str:
    """File, line and text of the user's line that raised."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return _show(error.filename, error.lineno or 0)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_OWN, "<"))  # no file: frozen modules, __init__ of dataclasses
    ]
    paths = sysconfig.get_paths()
    libraries = tuple({paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    own = [frame for frame in frames if not frame.filename.startswith(libraries)] or frames
    return _show(own[-1].filename, own[-1].lineno or 0) if own else "an unknown place"


def _show(file: str, line: int) -> str:
    text = linecache.getline(file, line).strip()
    return f"{file}, line {line}" + (f": {text}" if text else "")
