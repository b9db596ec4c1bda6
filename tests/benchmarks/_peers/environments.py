"""Environments of rivals below flowcore's cache folder, installed from the package index, once."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from flowcore.errors import InstallationError
from flowcore.installation.cache import cache_folder, lock_folder

__all__ = ["install_rival", "run_installer"]

_PYTHON = "3.11"


def install_rival(
    name: str, packages: Sequence[str], finish: Callable[[Path, int], None] | None = None, salt: bytes = b""
) -> Path:
    """Return the Python that has these packages; they are installed first if it is missing.

    Args:
        name: The rival, which names the folder.
        packages: What uv installs, with versions.
        finish: Installs what is no Python package: called with the environment's folder, and the descriptor
            of the lock, for processes that it starts.
        salt: Changes when ``finish`` installs something else.

    Raises:
        InstallationError: There is no uv, or a package cannot be installed.
    """
    digest = hashlib.sha256("\n".join(packages).encode() + salt).hexdigest()[:16]
    folder = cache_folder() / "peers" / f"{name}-{digest}"
    with lock_folder(folder.parent) as lock:
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            click.echo(f"installing {', '.join(packages)} into {folder}, once", err=True)
            uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
            if uv is None:
                msg = f"there is no uv to install {name} with: it cannot run; run: pip install uv"
                raise InstallationError(msg)
            run_installer(name, [uv, "venv", "--quiet", "--python", _PYTHON, folder], lock)
            python = folder / "bin" / "python"
            run_installer(name, [uv, "pip", "install", "--quiet", "--python", python, *packages], lock)
            if finish is not None:
                finish(folder, lock)
            (folder / "complete").touch()
    return folder / "bin" / "python"


def run_installer(name: str, command: Sequence[str | Path], lock: int) -> None:
    """Run a command that installs a part of a rival.

    Raises:
        InstallationError: It failed.
    """
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, pass_fds=(lock,)
    )
    if done.returncode != 0:
        msg = f"{name} cannot be installed, so it cannot run: {done.stdout[-2000:].strip()}"
        raise InstallationError(msg)
