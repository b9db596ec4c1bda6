"""Joined results: the committed tables that live queries join, by version.

A version is checked and loaded once for all queries that join it, and released when no query joins it. It is
pinned for a query before it is loaded, until the query joins another version. If a join key repeats, rows get
their position among the rows of the same key, so that each output has its own record id.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self, get_args

import pyarrow as pa
from pyarrow.dataset import dataset
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from flowcore.api.operators import Join, JoinType, Operator, WithHistory
from flowcore.errors import ResultError
from flowcore.planner.model import BoundedStage, LiveQuery
from flowcore.planner.plan import Plan
from flowcore.planner.rules.joins import is_shuffled
from flowcore.spark.context import Context
from flowcore.spark.errors import translate_run_errors
from flowcore.spark.frame.rows import RECORD_ORDINAL
from flowcore.spark.frame.sql import quote
from flowcore.spark.results.manifest import Manifest
from flowcore.spark.results.store import NEXT, results_of

__all__ = ["Joined", "JoinedResults", "describe_versions"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Joined:
    """The results that one query joins.

    Attributes:
        versions: The version of each result, by the name of its stage.
        bytes: The size of each result, by name.
    """

    versions: Mapping[str, str]
    frames: Mapping[Operator, DataFrame]
    bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """The version for the header of outputs; of several stages each with its name, of none empty."""
        if len(self.versions) == 1:
            return next(iter(self.versions.values()))
        return ", ".join(f"{stage}={version}" for stage, version in self.versions.items())


class JoinedResults:
    """The results that the live queries of a plan join; a context manager that releases them."""

    def __init__(self, plan: Plan, context: Context) -> None:
        self._plan = plan
        self._context = context
        self._store = results_of(context)
        self._stages = [stage for stage in plan.bounded if stage.results]
        self._frames: dict[tuple[str, str], dict[Operator, DataFrame]] = {}
        self._rejected: dict[tuple[str, str], str] = {}
        """Versions that a query cannot join, by the names of query and stage."""
        self._seen: dict[str, tuple[tuple[int, ...], str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for query in self._plan.live_queries:
            for stage in self._joined_by(query):
                with suppress(OSError):  # a later start or commit removes what is left
                    self._store.folder(stage.name).unpin(_next(query))
        with suppress(OSError):
            self.release(())

    def pin_newest(self, query: LiveQuery, wanted: Mapping[str, str] | None = None) -> Joined:
        """Load the newest results for a query, or the wanted versions, and pin them as its next ones.

        Args:
            wanted: Versions by stage, which the query still has pinned.

        Raises:
            ResultError: A result is missing or damaged.
        """
        versions: dict[str, str] = {}
        frames: dict[Operator, DataFrame] = {}
        sizes: dict[str, int] = {}
        for stage in self._joined_by(query):
            folder = self._store.folder(stage.name)
            version = (wanted or {}).get(stage.name)
            manifest = folder.manifest(version)
            if manifest is not None:
                folder.pin(_next(query), manifest.version)
            if manifest is None or (stage.name, manifest.version) not in self._frames:
                manifest = self._store.require(stage.name, version)
                folder.pin(_next(query), manifest.version)
                self._frames[stage.name, manifest.version] = {
                    result.operator: self._read(result.operator, stage, manifest) for result in stage.results
                }
            versions[stage.name] = manifest.version
            frames |= self._frames[stage.name, manifest.version]
            sizes |= {name: table.bytes for name, table in manifest.tables.items()}
        return Joined(versions, frames, sizes)

    def pin(self, query: LiveQuery, versions: Mapping[str, str]) -> None:
        """Pin the versions that a query starts with, and no other versions for it."""
        for stage, version in versions.items():
            folder = self._store.folder(stage)
            folder.pin(query.name, version)
            folder.unpin(_next(query))

    def release(self, used: Collection[tuple[str, str]]) -> None:
        """Release the versions that are not used; their files are removed unless another query needs them."""
        for stage, version in self._frames.keys() - set(used):
            for frame in self._frames.pop((stage, version)).values():
                frame.unpersist()
            self._store.folder(stage).remove_unused()

    def newer_versions(self, query: LiveQuery, versions: Mapping[str, str]) -> Mapping[str, str]:
        """The versions that are committed now and differ from a query's, by stage; cheap to call.

        A later version of a history does not count: state has begun with the first one.
        """
        found = {}
        for stage in self._joined_by(query):
            if all(_is_history(result.operator, query) for result in stage.results):
                continue
            version = self._version_now(stage.name)
            rejected = self._rejected.get((query.name, stage.name))
            if version and version not in (versions.get(stage.name), rejected):
                found[stage.name] = version
        return found

    def reject(self, query: LiveQuery, versions: Mapping[str, str]) -> None:
        """Remember the versions that a query cannot join, so that they are not tried again."""
        for stage, version in versions.items():
            self._rejected[query.name, stage] = version
            self._store.folder(stage).unpin(_next(query))

    def _joined_by(self, query: LiveQuery) -> list[BoundedStage]:
        joined = set(query.results)
        return [stage for stage in self._stages if joined & {result.operator for result in stage.results}]

    def _version_now(self, stage: str) -> str | None:
        folder = self._store.folder(stage)
        try:
            entry = folder.manifest_path.stat()
            mark = (entry.st_mtime_ns, entry.st_ino, entry.st_size)
            if self._seen.get(stage, ((), ""))[0] != mark:
                manifest = folder.manifest()
                self._seen[stage] = mark, manifest.version if manifest else ""
        except (OSError, ResultError):
            _log.warning("the manifest of stage %r cannot be read", stage, exc_info=True)
            return None
        return self._seen[stage][1]

    def _read(self, operator: Operator, stage: BoundedStage, manifest: Manifest) -> DataFrame:
        what = f"reading result {operator.name!r} of stage {stage.name!r}, version {manifest.version},"
        try:
            with translate_run_errors(what, self._context.log):
                return self._load(operator, stage, manifest)
        except (pa.ArrowException, PermissionError) as error:
            msg = (
                f"{what} failed: {error}: it cannot be joined; look at its files in the state folder, or run "
                "the stage again with --refresh"
            )
            raise ResultError(msg) from error

    def _load(self, operator: Operator, stage: BoundedStage, manifest: Manifest) -> DataFrame:
        root = self._store.folder(stage.name).root
        table = manifest.tables[operator.name]
        spelled = {name.lower(): name for name, _ in table.schema}
        if missing := [name for name in operator.columns if name.lower() not in spelled]:
            msg = (
                f"result {operator.name!r} of flow {self._plan.flow!r}, version {manifest.version}, has no "
                f"column {missing[0]!r}: another version of the flow wrote it, and it cannot be joined; run "
                "the stage again with this version"
            )
            raise ResultError(msg)
        files = [str(root / file.path) for file in table.files]
        schema = ", ".join(f"`{name}` {kind}" for name, kind in table.schema)
        reader = self._context.spark.read
        if "struct<" not in schema:  # the names of fields have no backquotes in it, which they may need
            reader = reader.schema(schema)
        frame = reader.parquet(*files)
        joined = _join_keys(operator, self._plan, ("inner", "left"))
        repeating = [keys for keys in joined if _repeats(files, [spelled[name.lower()] for name in keys])]
        if repeating:
            # With one repeating key the first row is number 0; with several only a global number is unique.
            sortable = [name for name, kind in frame.dtypes if "map<" not in kind and "variant" not in kind]
            groups = repeating[0] if len(repeating) == 1 else ()
            order = Window.partitionBy(*map(quote, groups)).orderBy(*map(quote, sortable))
            frame = frame.withColumn(RECORD_ORDINAL, F.row_number().over(order) - 1)
        # A micro-batch query reads the table for every batch, other queries once in minutes.
        readers = [query for query in self._plan.live_queries if operator in query.results]
        if all(_is_history(operator, query) for query in readers):
            return frame
        modes = {query.mode.value for query in readers}
        if is_shuffled(table.bytes, self._context.settings) and modes != {"slice"}:
            return self._distribute(frame, _join_keys(operator, self._plan, get_args(JoinType))).persist()
        return frame.persist() if "micro-batch" in modes else frame

    def _distribute(self, frame: DataFrame, keys: Sequence[tuple[str, ...]]) -> DataFrame:
        """Shuffle and sort a table once, not in each batch, if all of its joins have the same keys."""
        if len(keys) != 1:
            return frame
        columns = [quote(name) for name in keys[0]]
        spread = frame.repartition(self._context.settings.shuffle_partitions, *columns)
        return spread.sortWithinPartitions(*columns)


def _next(query: LiveQuery) -> str:
    return f"{NEXT}{query.name}"


def _is_history(operator: Operator, query: LiveQuery) -> bool:
    """Whether a query does not join a result: it reads the result once as a history, or not at all."""
    readers = [node for node in query.operators if operator in node.inputs]
    return all(isinstance(node, WithHistory) for node in readers)


def _join_keys(operator: Operator, plan: Plan, kinds: Collection[str]) -> list[tuple[str, ...]]:
    joins = {
        node
        for query in plan.live_queries
        for node in query.operators
        if isinstance(node, Join) and node.inputs[1] is operator and node.how in kinds
    }
    return sorted({tuple(theirs for _, theirs in join.on) for join in joins})


def _repeats(files: Sequence[str], keys: Sequence[str]) -> bool:
    # Arrow takes as long as Spark needs to plan the query.
    table = dataset(list(files)).to_table(columns=list(keys)).drop_null()  # null equals no key
    try:
        groups = table.group_by(list(keys)).aggregate([])
    except pa.ArrowNotImplementedError:  # a key of a nested type: positions are never wrong
        return True
    return bool(groups.num_rows < table.num_rows)


def describe_versions(versions: Mapping[str, str]) -> str:
    """Versions of results by stage, as a text."""
    return ", ".join(f"version {version} of stage {stage!r}" for stage, version in versions.items())
