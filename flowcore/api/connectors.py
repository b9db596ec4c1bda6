"""Connectors: the sources and sinks of a flow, as plain descriptions.

Nothing here opens a file or a socket. Relative paths are resolved with the setting ``data.dir``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flowcore.api.kafka_topic import (
    ADDED_LATER,
    DEDUPLICATE_WITHIN,
    LONGEST_CHANNEL,
    RECORD_ID_HEADER,
    Delivery,
    Elements,
    Isolation,
    KafkaTopic,
    Position,
)
from flowcore.api.schema import Schema

__all__ = [
    "ADDED_LATER",
    "DEDUPLICATE_WITHIN",
    "LONGEST_CHANNEL",
    "RECORD_ID_HEADER",
    "Csv",
    "Delivery",
    "Elements",
    "Files",
    "Frame",
    "Isolation",
    "Json",
    "KafkaTopic",
    "Parquet",
    "Position",
    "Sink",
    "Source",
    "from_frame",
]


@dataclass(frozen=True, slots=True)
class Parquet:
    """A Parquet file or a folder of them. As a source it is bounded.

    Args:
        schema: The columns to read, as Spark DDL; needed to read, not to write.
        partition_by: Sinks only: the columns whose values name the folders of rows, ``day=2026-01-31``. They
            are not in the files.
    """

    path: str
    schema: Schema | str | None = None
    partition_by: str | tuple[str, ...] = field(default=(), metadata=ADDED_LATER)


@dataclass(frozen=True, slots=True)
class Csv:
    """A CSV file or a folder of them. As a source it is bounded.

    A line that does not fit the schema fails the stage and is shown: nothing is dropped. An empty field is
    null, and an empty text is in quotes. Texts with line breaks need ``options={"multiLine": "true"}``.

    Args:
        schema: The columns in the file's order, as Spark DDL; needed to read, not to write.
        header: The first line of each file holds the names.
        delimiter: The separator of fields.
        options: Further options of Spark's CSV reader or writer, for instance ``timestampFormat``.
        partition_by: Sinks only: see `Parquet`.
    """

    path: str
    schema: Schema | str | None = None
    header: bool = True
    delimiter: str = ","
    options: Mapping[str, str] = field(default_factory=dict)
    partition_by: str | tuple[str, ...] = field(default=(), metadata=ADDED_LATER)


@dataclass(frozen=True, slots=True)
class Json:
    """A file or folder of JSON lines (one object a line). As a source it is bounded.

    A line that does not fit the schema fails the stage and is shown: nothing is dropped.

    Args:
        schema: The fields to read, as Spark DDL; needed to read, not to write.
        options: Further options of Spark's JSON reader or writer, for instance ``timestampFormat``.
        partition_by: Sinks only: see `Parquet`.
    """

    path: str
    schema: Schema | str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    partition_by: str | tuple[str, ...] = field(default=(), metadata=ADDED_LATER)


@dataclass(frozen=True, slots=True)
class Frame:
    """A bounded source that a function makes; see `from_frame`."""

    function: Callable[..., Any]
    schema: Schema | str


def from_frame(function: Callable[..., Any], schema: Schema | str) -> Frame:
    """Make a bounded source of any function ``spark -> DataFrame``, with its columns as Spark DDL.

    It is called, and its columns are checked, when the stage runs and not when it is declared.
    """
    return Frame(function, schema)


Files = Parquet | Csv | Json
Source = Files | KafkaTopic | Frame
Sink = Files | KafkaTopic
