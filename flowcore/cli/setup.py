"""`flowcore setup`: download and build what flowcore needs besides its Python packages."""

import os
import sys
import time
from pathlib import Path

import click

from flowcore.errors import InstallationError
from flowcore.installation.archive import archive_file, make_archive
from flowcore.installation.jars import jars, jars_folder
from flowcore.installation.java import find_java
from flowcore.ownership import is_foreign

__all__ = ["setup"]


_DAGSTER = Path(__file__).parents[1] / "dagster" / "dagster.yaml"


@click.command()
@click.option(
    "--dagster-home",
    type=click.Path(path_type=Path, file_okay=False),
    help="Only write the configuration of a Dagster instance for flows, dagster.yaml, to this folder.",
)
def setup(dagster_home: Path | None) -> None:
    """Download the Kafka jars and build Spark's class archive, unless they exist.

    Both are written to FLOWCORE_CACHE (default: flowcore in your cache folder). Nothing else on the machine
    is changed.

    \b
    Examples:
      flowcore setup
      flowcore setup --dagster-home ~/dagster
      FLOWCORE_CACHE=/opt/flowcore flowcore setup
    """
    if dagster_home is not None:
        _write_dagster_home(dagster_home)
        return
    java = find_java()
    click.echo(f"Java           {java.build} at {java.home}")
    was_there, started = jars_folder().is_dir(), time.monotonic()
    count = len(jars("connector")) + len(jars("broker"))
    click.echo(f"jars           {count} in {jars_folder()} ({_how('downloaded', was_there, started)})")
    archive = archive_file()
    was_there, started = archive.is_file(), time.monotonic()
    if not was_there:
        click.echo("class archive  running a typical job, which takes about a minute")
    try:
        make_archive([sys.executable, "-m", "flowcore.spark.run.warm_up"])
    except InstallationError as error:  # Spark works without it
        click.echo(f"class archive  {error}", err=True)
    else:
        click.echo(f"class archive  {archive} ({_how('made', was_there, started)})")


def _write_dagster_home(folder: Path) -> None:
    target = folder / _DAGSTER.name
    text = _DAGSTER.read_text(encoding="utf-8")
    if target.exists() and target.read_text(encoding="utf-8") != text:
        msg = (
            f"{target} is there and differs: what was configured would be lost; remove it, or take over what "
            f"you need of {_DAGSTER}"
        )
        raise InstallationError(msg)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if is_foreign(found):
        msg = (
            f"{folder} belongs to user {found.st_uid}, who could read and change what Dagster keeps "
            "there: runs, events and logs; pass a folder of your own"
        )
        raise InstallationError(msg)
    if found.st_uid == os.geteuid():  # not root's, as of a container's volume
        folder.chmod(0o700)  # its databases and logs are the user's only
    target.write_text(text, encoding="utf-8")
    click.echo(f"Dagster        {target}; export DAGSTER_HOME={folder.absolute()}")


def _how(verb: str, was_there: bool, started: float) -> str:
    return "already there" if was_there else f"{verb} in {time.monotonic() - started:.0f} s"
