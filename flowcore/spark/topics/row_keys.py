"""Kafka keys as columns, for a topic whose records replace earlier ones: the key names the replaced row.

The key has the form that a sink writes (`flowcore.spark.topics.messages.kafka_key`): the text of one column,
or a JSON object of several, in which null columns are left out, and which is read as a JSON value is. A
record without a value deletes its key. Everything here is SQL text over the source's columns ``key`` and
``value``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from flowcore.api.operators import Read
from flowcore.api.schema import Column
from flowcore.spark.frame.sql import literal, quote, struct, visible
from flowcore.spark.topics.formats.decimal_numbers import is_decimal, short_number
from flowcore.spark.topics.formats.json_text import object_misfits, parse_object
from flowcore.spark.topics.formats.json_times import TIME_OF_DAY
from flowcore.spark.topics.formats.sql_format import RECORD, outside_calendar, spark_type

__all__ = ["IS_TOMBSTONE", "ROW_KEY", "RowKey"]

ROW_KEY = "_row_key"
"""The column that has the columns of the key, a struct."""
IS_TOMBSTONE = "value IS NULL"
_TEXT = "CAST(key AS STRING)"
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class RowKey:
    """The columns of the Kafka key of a source's records."""

    columns: Sequence[Column]

    @classmethod
    def of_source(cls, read: Read) -> RowKey | None:
        """The key of the records of a source; None if they are final."""
        if read.row_key is None:
            return None
        return cls([each for name in read.row_key for each in read.schema.columns if each.name == name])

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.columns)

    @property
    def _is_bytes(self) -> bool:
        """Whether any bytes are a key; in JSON they are text."""
        return [each.type for each in self.columns] == ["BINARY"]

    def parse(self) -> str:
        """The key as the struct `ROW_KEY`; its fields are null if the key is not one of such columns."""
        if len(self.columns) == 1:
            (column,) = self.columns
            text = short_number(_TEXT) if is_decimal(column) else "key" if self._is_bytes else _TEXT
            return f"{struct({column.name: f'try_cast({text} AS {column.type})'})} AS {ROW_KEY}"
        # Not deterministic, so that Spark does not parse it again in each filter: see `parse_value`.
        parsed = parse_object(self.columns, "key")
        return f"CASE WHEN spark_partition_id() >= 0 THEN {parsed} END AS {ROW_KEY}"

    def unknown_reasons(self) -> Iterator[tuple[str, str]]:
        """Conditions under which a key cannot be read, with SQL text of the reason."""
        yield (
            "key IS NULL",
            literal(
                f"has no key, and its {', '.join(self.names)} says which record it replaces (updating_by)"
            ),
        )
        kinds = ", ".join(f"{each.name} {each.type}" for each in self.columns)
        form = "the text of" if len(self.columns) == 1 else "a JSON object of"
        shown = f"CASE WHEN is_valid_utf8({_TEXT}) THEN {_TEXT} ELSE concat('bytes ', hex(key)) END"
        wanted = literal(f", which is not {form} {kinds} (updating_by)")
        yield self._unreadable(), f"concat('has the key ', {visible(f'left({shown}, {_SHOWN})')}, {wanted})"

    def other_reasons(self) -> Iterator[tuple[str, str]]:
        """Conditions under which a value has another key than its message, with SQL text of the reason."""
        for each in self.columns:
            mine, other = f"{ROW_KEY}.{quote(each.name)}", f"{RECORD}.{quote(each.name)}"
            first = literal(f"has in its value {each.name} = ")
            texts = (f"left(coalesce(CAST({one} AS STRING), 'null'), {_SHOWN})" for one in (other, mine))
            both = ", ', and in its key ', ".join(map(visible, texts))
            yield (
                f"{other} IS NOT NULL AND NOT ({mine} <=> {other})",
                f"concat({first}, {both}, ' (updating_by)')",
            )

    def keep_last(self, rows: DataFrame) -> DataFrame:
        """The last row of each key, without the keys that are deleted then."""
        last = F.expr(f"max_by(struct({RECORD}, {IS_TOMBSTONE} AS deleted), offset) AS last")
        found = rows.groupBy(ROW_KEY).agg(last).where("NOT last.deleted")
        return found.selectExpr(ROW_KEY, f"last.{RECORD} AS {RECORD}")

    def _unreadable(self) -> str:
        wrong = [] if self._is_bytes else [f"NOT is_valid_utf8({_TEXT})"]
        if len(self.columns) > 1:
            names = f"array({', '.join(map(literal, self.names))})"
            wrong = [f"{ROW_KEY} IS NULL", *object_misfits(self.columns, "key", ROW_KEY)]
            wrong.append(f"coalesce(size(array_except(json_object_keys({_TEXT}), {names})), 1) <> 0")
        elif self.columns[0].type == "TIMESTAMP":
            wrong.append(f"{_TEXT} RLIKE {literal(TIME_OF_DAY)}")
        elif self.columns[0].type == "DATE":
            wrong.append(f"CAST({ROW_KEY}.{quote(self.columns[0].name)} AS STRING) <> {_TEXT}")
        for each in self.columns:
            value = f"{ROW_KEY}.{quote(each.name)}"
            if len(self.columns) == 1 or not each.nullable:
                wrong.append(f"{value} IS NULL")
            if condition := outside_calendar(value, spark_type(each)):
                wrong.append(f"coalesce({condition}, false)")
        return " OR ".join(f"({each})" for each in wrong)
