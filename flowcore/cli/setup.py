"""`flowcore setup`: download and build what flowcore needs besides its Python packages."""

import sys
import time

import click

from flowcore.errors import InstallationError
from flowcore.installation.archive import archive_file, make_archive
from flowcore.installation.jars import jars, jars_folder
from flowcore.installation.java import find_java

__all__ = ["setup"]


@click.command()
def setup() -> None:
    """Download the Kafka jars and build Spark's class archive, unless they exist.

    Both are written to FLOWCORE_CACHE (default: flowcore in your cache folder). Nothing else on the machine
    is changed.

    \b
    Examples:
      flowcore setup
      FLOWCORE_CACHE=/opt/flowcore flowcore setup
    """
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


def _how(verb: str, was_there: bool, started: float) -> str:
    return "already there" if was_there else f"{verb} in {time.monotonic() - started:.0f} s"
