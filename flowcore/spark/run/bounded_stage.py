"""Run a bounded stage as a batch job, and commit its result atomically."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import DataFrame

from flowcore.api.connectors import KafkaTopic
from flowcore.api.operators import (
    Deduplicate,
    KeyedProcess,
    Operator,
    PythonOperator,
    Read,
    SideOutput,
    Window,
    Write,
)
from flowcore.chains import DownstreamChain
from flowcore.durations import read_clock_ms
from flowcore.errors import RunError
from flowcore.planner.model import BoundedStage, Chain
from flowcore.planner.rules.columns import find_used_columns
from flowcore.planner.rules.fingerprint import fingerprint_operators
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.errors import translate_plan_errors, translate_run_errors
from flowcore.spark.operators import batch
from flowcore.spark.operators.bounded_keyed import BoundedKeyed, apply_bounded
from flowcore.spark.operators.chain_specs import ChainOutlet, make_downstream_chain
from flowcore.spark.operators.python_chain import apply_bounded_chain
from flowcore.spark.results.manifest import Manifest, Table
from flowcore.spark.results.store import results_of
from flowcore.spark.results.swaps import Swap, finish_swaps, require_replaceable, roll_back_swaps
from flowcore.spark.topics.misfit_lines import name_misfit_lines
from flowcore.spark.topics.offsets import OffsetRange
from flowcore.spark.topics.sinks import write_bad_records, write_files, write_topic
from flowcore.spark.topics.sources import read_bounded, source_offsets, source_version

__all__ = ["run_bounded", "source_versions", "up_to_date"]

_DIGEST_BYTES = 16


def source_versions(stage: BoundedStage, settings: Settings) -> dict[str, str]:
    """The current version of each source of a stage; empty text if it is unknown.

    Raises:
        RunError: A source does not exist.
        BrokerError: A broker cannot be reached.
    """
    return _versions_at(_resolve_offsets(stage, settings), settings)


def _resolve_offsets(stage: BoundedStage, settings: Settings) -> dict[Read, OffsetRange]:
    return {source: source_offsets(source, settings) for source in stage.sources}


def _versions_at(offsets: Mapping[Read, OffsetRange], settings: Settings) -> dict[str, str]:
    return {source.name: source_version(source, settings, offsets[source]) for source in offsets}


def up_to_date(stage: BoundedStage, context: Context) -> Manifest | None:
    """The committed result, if running the stage again would give the same result.

    An interrupted commit is finished first.

    Raises:
        RunError: Another process runs the stage.
        ResultError: The manifest cannot be read.
    """
    folder = results_of(context).folder(stage.name)
    folder.finish_commit(_targets(stage, context).values())
    committed = folder.manifest()
    if committed is None or committed.fingerprint != fingerprint_operators(stage.operators):
        return None
    if not all(Path(target).exists() for target in _targets(stage, context).values()):
        return None
    now = source_versions(stage, context.settings)
    return committed if all(now.values()) and now == committed.sources else None


def run_bounded(
    stage: BoundedStage, context: Context, *, finishing: Callable[[], None] = lambda: None
) -> Manifest:
    """Run a stage to the end of its input and commit its result.

    The function ``finishing`` is called when the input has ended, before the commit.

    Raises:
        RunError: The stage failed, or another process runs it; none of its results are visible.
        PlanError: Spark refuses an operator.
    """
    began = time.monotonic()
    fingerprint = fingerprint_operators(stage.operators)  # before anything is written
    folder = results_of(context).folder(stage.name)
    targets = _targets(stage, context)
    with (
        folder.fresh_version(targets.values()) as (version, path),
        translate_run_errors(f"stage {stage.name!r}", context.log),
        name_misfit_lines(f"stage {stage.name!r}", stage.sources, context),
        ExitStack() as kept,
        ExitStack() as undone,
    ):
        require_replaceable(targets.values())  # before anything is computed
        offsets = _resolve_offsets(stage, context.settings)  # once: what is read is what the manifest names
        sources = _versions_at(offsets, context.settings)
        frames, rejected = _compile(stage, context, offsets, kept)
        for result in stage.results:
            frames[result.operator].write.parquet(str(path / result.name))
        swaps = {sink: Swap.of(target, version) for sink, target in targets.items()}
        roll_back_swaps(targets.values())
        undone.callback(roll_back_swaps, targets.values())
        _write_sinks(stage, frames, context, swaps, _input_version(sources))
        finishing()
        require_replaceable(targets.values())  # it may have changed since
        manifest = Manifest(
            flow=context.flow,
            stage=stage.name,
            version=version,
            created_ms=read_clock_ms(),
            duration_ms=int((time.monotonic() - began) * 1000),
            fingerprint=fingerprint,
            sources=sources,
            tables={
                result.name: Table.scan(
                    path / result.name, tuple(frames[result.operator].dtypes), folder.root
                )
                for result in stage.results
            },
            rejected=rejected,
        )
        path.mkdir(parents=True, exist_ok=True)
        manifest.write(path / folder.manifest_path.name)  # a repeated batch joins this version again
        manifest.write(folder.manifest_path)
        undone.pop_all()
        finish_swaps(swaps.values())
    return manifest


def _compile(
    stage: BoundedStage, context: Context, offsets: Mapping[Read, OffsetRange], kept: ExitStack
) -> tuple[dict[Operator, DataFrame], dict[str, int]]:
    frames: dict[Operator, DataFrame] = {}
    rejected: dict[str, int] = {}
    shared = _find_shared(stage)
    ends = [result.operator for result in stage.results]
    # Native operators compute all their columns, so chains emit what these need; Spark drops unused ones.
    native = [node for node in stage.operators if not isinstance(node, PythonOperator)]
    used = find_used_columns(stage.operators, [*native, *ends])
    check = context.settings.object_reuse_check
    chains: dict[Operator, Chain] = {chain.head: chain for chain in stage.chains}
    for node in stage.operators:
        match node:
            case Read():
                with translate_plan_errors(node.name):
                    source = read_bounded(node, context, offsets[node])
                frames[node] = source.frame
                if source.bad is not None and isinstance(node.source, KafkaTopic):
                    rejected[node.name] = write_bad_records(node, node.source, source.bad, context)
            case Write():
                continue
            case _ if node in chains and not isinstance(node, KeyedProcess):
                with translate_plan_errors(node.name):
                    frame = frames[node.inputs[0]]
                    whole, parts = apply_bounded_chain(chains[node], frame, used, ends, check)
                    _persist_parts(whole, parts, shared, kept)
                    frames |= parts
            case _ if isinstance(node, PythonOperator) or node in frames:
                pass  # it runs with the head of its chain, or was compiled with its process
            case Window() | KeyedProcess() | Deduplicate() if node.compiled().value == "key-group":
                with translate_plan_errors(node.name):
                    chain, frame = chains.get(node), frames[node.inputs[0]]
                    downstream = make_downstream_chain(chain, used, ends, check) if chain else None
                    whole, parts = _apply_by_key_group(node, downstream, stage, frame, context)
                    _persist_parts(whole, parts, shared, kept)
                    frames |= parts
            case _:
                frames[node] = batch.apply_native(node, frames)
        if node in shared and node in frames:
            frames[node] = frames[node].persist()
            # Otherwise Spark would answer a later run in this session from the cache.
            kept.callback(frames[node].unpersist)
    return frames, rejected


def _apply_by_key_group(
    node: BoundedKeyed,
    downstream: tuple[DownstreamChain, Sequence[ChainOutlet]] | None,
    stage: BoundedStage,
    frame: DataFrame,
    context: Context,
) -> tuple[DataFrame, Mapping[Operator, DataFrame]]:
    """A frame with all outputs; the results of an operator or of its chain, and a process' side outputs."""
    now_ms, key_groups = read_clock_ms(), context.settings.key_groups
    found = apply_bounded(
        node, frame, key_groups=key_groups, processing_time_ms=now_ms, downstream=downstream
    )
    parts: dict[Operator, DataFrame] = {**found.results}
    for side in stage.operators:
        if isinstance(side, SideOutput) and node in side.inputs and side.output in found.sides:
            parts[side] = found.sides[side.output]
    return found.whole, parts


def _persist_parts(
    whole: DataFrame, parts: Mapping[Operator, DataFrame], shared: set[Operator], kept: ExitStack
) -> None:
    if len(parts) > 1:  # each part is read by itself, and functions must run once
        whole.persist()
        kept.callback(whole.unpersist)
        shared -= parts.keys()


def _find_shared(stage: BoundedStage) -> set[Operator]:
    """The operators whose output is kept, since it is read more than once.

    These are the last ones that several outputs share, without sources, which are read again; and those with
    a user's function that are read more than once for one output, since functions must run once.
    """
    shared = _shared_by_outputs(stage)
    reads = Counter(result.operator for result in stage.results)
    for node in reversed(stage.operators):
        if reads[node] > 1 and node.calls_user_functions:
            shared.add(node)
        times = 1 if node in shared or isinstance(node, Write) else reads[node]
        for parent in node.inputs:
            reads[parent] += times
    return shared


def _shared_by_outputs(stage: BoundedStage) -> set[Operator]:
    ends = [*(result.operator for result in stage.results), *(sink.inputs[0] for sink in stage.sinks)]
    needs = [set(end.upstream) for end in ends]
    common = {node for node in stage.operators if sum(node in need for need in needs) > 1}
    common = {node for node in common if not isinstance(node, Read)}
    inner = {parent for node in common for parent in node.inputs}
    outer = {parent for node in stage.operators if node not in common for parent in node.inputs}
    return {node for node in common if node not in inner or node in outer}


def _write_sinks(
    stage: BoundedStage,
    frames: Mapping[Operator, DataFrame],
    context: Context,
    swaps: Mapping[Write, Swap],
    version: str,
) -> None:
    # Sinks that are visible at once are last, when nothing else can fail.
    for sink in sorted(stage.sinks, key=lambda sink: sink not in swaps):
        frame = frames[sink.inputs[0]]
        with translate_plan_errors(sink.name):
            match sink.sink:
                case KafkaTopic() as topic:
                    write_topic(sink, topic, frame, context, version)
                case files:
                    folder = swaps[sink].staged if sink in swaps else context.path(files.path)
                    write_files(files, frame, folder)


def _input_version(sources: Mapping[str, str]) -> str:
    """A digest of the versions of a stage's sources."""
    digest = hashlib.sha256(json.dumps(sorted(sources.items())).encode()).digest()[:_DIGEST_BYTES]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _targets(stage: BoundedStage, context: Context) -> dict[Write, str]:
    """The folders of a stage's sinks, without topics, and without addresses, where no file can be renamed.

    Links are followed: the folder that a link leads to is replaced, and the link stays.

    Raises:
        RunError: A folder is a mount point.
    """
    files = [(sink, sink.sink) for sink in stage.sinks]
    paths = {sink: context.path(to.path) for sink, to in files if not isinstance(to, KafkaTopic)}
    targets = {sink: os.path.realpath(path) for sink, path in paths.items() if "://" not in path}
    for sink, target in targets.items():
        if os.path.ismount(target):
            msg = (
                f"sink {sink.name!r} of stage {stage.name!r} writes to {target}, where a disk is mounted: a "
                "mount point cannot be renamed, so that the new folder would not come into its place; write "
                f"to a folder in it, such as {target}/{sink.name}"
            )
            raise RunError(msg)
    return targets
