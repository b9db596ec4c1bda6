"""The folders of files that a flow reads and writes, when the settings say where they are."""

from collections.abc import Sequence
from pathlib import PurePosixPath

from flowcore.api.connector_checks import find_folder, require_apart
from flowcore.api.operators import Operator, Write
from flowcore.errors import PlanError
from flowcore.settings import Settings

__all__ = ["require_folders"]


def require_folders(operators: Sequence[Operator], settings: Settings) -> None:
    """Check that no sink writes a folder around what the flow reads, nor around data.dir or state.dir.

    Raises:
        PlanError: A sink would replace such a folder.
    """
    base = str(settings.data_dir.absolute())
    for number, node in enumerate(operators):
        folder = find_folder(node, base) if isinstance(node, Write) else None
        for key, kept in (("data.dir", settings.data_dir), ("state.dir", settings.state_dir)):
            if folder is not None and PurePosixPath(kept.absolute()).is_relative_to(folder):
                msg = (
                    f"sink {node.name!r} writes the folder {folder!r}, which is {key} or around it "
                    f"({kept.absolute()}): everything in it would be removed; write another folder, or set "
                    f"{key} to one"
                )
                raise PlanError(msg)
        require_apart(node, operators[:number], base)
