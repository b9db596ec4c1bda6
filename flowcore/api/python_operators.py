"""Operators that call a Python function in a worker, record by record or batch by batch."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flowcore.api.decisions import Obstacle
from flowcore.api.functions import is_rich, name_of, promises
from flowcore.api.node import Operator, Origins, trace_each, trace_to_all
from flowcore.api.schema import Schema

__all__ = ["Filter", "FlatMap", "Map", "MapBatches", "PythonOperator", "PythonTransform"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PythonOperator(Operator):
    """An operator with a Python function.

    Attributes:
        uses: The input columns that it reads, as the input spells them; None for all.
        passes: The columns that each output record has, unchanged, from the record it is made of.
    """

    kind: ClassVar[Literal["map", "filter", "flat_map", "map_batches"]]
    key_hint: ClassVar[str] = "use process(by=...)"
    """How its output gets a key."""

    function: Callable[[Any], Any]
    uses: tuple[str, ...] | None = None
    passes: tuple[str, ...] = ()

    def own_attributes(self) -> Mapping[str, bool]:
        return promises(self.function, self.name)

    def describe(self) -> str:
        uses = "" if self.uses is None else f", using {', '.join(self.uses) or 'no column'}"
        return f"{self.kind.replace('_', ' ')} {name_of(self.function)}{uses}"

    def reads(self, used: Collection[str]) -> Collection[str]:  # noqa: ARG002 - the function makes all
        return self.inputs[0].columns if self.uses is None else self.uses

    def lineage(self, known: Mapping[Operator, Origins]) -> Origins:
        inputs = self.origins(known)
        made = trace_to_all(inputs, self.columns, self.reads(()))
        return {**made, **trace_each(inputs, self.passes)}

    @property
    def calls_user_functions(self) -> bool:
        return True

    def checkpoint_obstacle(self) -> Obstacle | None:
        if not is_rich(self.function) or self.flush_obstacle() is None:
            return None
        return Obstacle("the engine cannot reach the records that its function keeps")

    @property
    def passed_columns(self) -> tuple[str, ...]:
        return self.passes

    def flush_obstacle(self) -> Obstacle | None:
        found = self.replacement_obstacle()
        if found is None or not self.attributes().output_idempotent:
            return found
        return found._replace(change=self.key_hint)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PythonTransform(PythonOperator):
    """A Python operator whose function makes the output records."""

    schema: Schema

    def types(self) -> Mapping[str, str]:
        return self.schema.types


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Map(PythonTransform):
    """One record from each: ``dict -> dict``."""

    kind = "map"
    key_hint = "give it key= one or more of its columns"

    @property
    def keeps_keys_apart(self) -> bool:
        return self.key is not None and self.key == self.inputs[0].key_passed_by(self.passes)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Filter(PythonOperator):
    """The records for which the function returns true, as they are: ``dict -> bool``."""

    kind = "filter"
    is_row_wise = True

    @property
    def passed_columns(self) -> tuple[str, ...]:
        return self.columns

    def reads(self, used: Collection[str]) -> Collection[str]:
        return {*used, *PythonOperator.reads(self, used)}

    def lineage(self, known: Mapping[Operator, Origins]) -> Origins:
        return trace_each(self.origins(known), self.columns)

    def types(self) -> Mapping[str, str]:
        return self.passed_types(self.columns)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FlatMap(PythonTransform):
    """Any number of records from each: ``dict -> Iterable[dict]``."""

    kind = "flat_map"
    key_hint = "give it key= one or more of its columns"

    @property
    def repeats_records(self) -> bool:
        return True


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MapBatches(PythonTransform):
    """Arrow record batches: ``RecordBatch -> RecordBatch``, with any number of rows."""

    kind = "map_batches"
    has_timestamps = False

    @property
    def emits_batches(self) -> bool:
        return True
