"""Names the line of a CSV or JSON file that does not fit its schema.

Spark's error has the file in one of its causes, and never the line. So the file is read once more, up to the
line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from flowcore.api.connectors import Csv, Json
from flowcore.api.operators import Read
from flowcore.errors import RunError
from flowcore.spark.context import Context
from flowcore.spark.errors import collect_texts
from flowcore.spark.topics.sources import columns_ddl, read_files

__all__ = ["name_misfit_lines"]

_FILE = re.compile(r"\[FAILED_READ_FILE\.\w+\] Encountered error while reading file (\S+?)\.? +SQLSTATE")
_MISFIT = "MALFORMED_RECORD_IN_PARSING"
_CORRUPT = "_flowcore_corrupt"
_SHOWN = 200
"""Most characters of a line in an error."""


@contextmanager
def name_misfit_lines(what: str, sources: Iterable[Read], context: Context) -> Iterator[None]:
    """Translate the error of a line that does not fit the schema of one of the sources.

    Raises:
        RunError: A line does not fit; the error names ``what`` was run, file and line.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        text = " ".join(collect_texts(error))
        file = _FILE.search(text)
        if file is None or _MISFIT not in text:
            raise
        reads = [each for each in sources if isinstance(each.source, Csv | Json)]
        for read in reads:
            line = _find_line(read, file[1], context) if _is_of(file[1], read, context) else None
            if line is not None:
                raise RunError(_message(what, read, file[1], line, context.log)) from error
        raise


def _is_of(file: str, read: Read, context: Context) -> bool:
    path = context.path(getattr(read.source, "path", ""))
    return unquote(file).startswith(path if "://" in path else f"file://{path}")


def _find_line(read: Read, file: str, context: Context) -> str | None:
    """The first line of a file that does not fit, None if all do."""
    source = read.source
    if not isinstance(source, Csv | Json):
        return None
    found, ddl = None, f"{columns_ddl(read)}, `{_CORRUPT}` STRING"
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    with suppress(PySparkException, Py4JJavaError):  # the first error is the one to report
        frame = read_files(replace(source, path=unquote(file)), ddl, context, **options)
        found = frame.where(f"`{_CORRUPT}` IS NOT NULL").head()
    return None if found is None else str(found[_CORRUPT])


def _message(what: str, read: Read, file: str, line: str, log: str) -> str:
    url = urlsplit(file)
    path = Path(unquote(url.path))
    number = _number_of(line, path) if url.scheme == "file" else None
    place = (
        f"line {number:,} of {path}" if number is not None else f"a line of {path if path.exists() else file}"
    )
    text = " ".join(line.split("\n"))
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return (
        f"{what} failed: source {read.name!r}: {place} does not fit its schema, {read.schema}: {shown}: it "
        "would be lost; correct the line, or declare a column of other values as STRING and convert it with "
        f"try_cast (details: {log})"
    )


def _number_of(line: str, path: Path) -> int | None:
    """The number of a line, from 1; None if the file cannot be read as text, as if it is compressed."""
    wanted = line.splitlines()[0] if line else ""
    try:
        with path.open(encoding="utf-8") as file:
            return next((n for n, each in enumerate(file, 1) if each.rstrip("\r\n") == wanted), None)
    except (OSError, UnicodeDecodeError):
        return None
