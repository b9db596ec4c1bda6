"""The files of a checkpoint: whether there is space for more, and whether those of its log can be read.

Spark replaces files, and does not change them, so a file is torn only if the machine or its disk has failed.
Spark would refuse such a checkpoint at each start, and not name a way to continue. Files of state are read by
Spark only; see `flowcore.spark.errors`.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from flowcore.errors import DamagedCheckpointError
from flowcore.spark.checkpoint.identity import start_anew
from flowcore.spark.checkpoint.offset_log import begin_logs, committed_batches, planned_batches
from flowcore.stored_json import read_json

__all__ = ["WATERMARKS", "find_torn_state", "remove_torn_commit", "require_space", "require_undamaged"]

WATERMARKS = "watermarks.json"
"""The file in a checkpoint with the watermarks of its sources, as of the last batch."""
_METADATA = "metadata"
_PROBE = ".probe"
_PROBE_BYTES = 1 << 20

_log = logging.getLogger(__name__)


def require_space(folder: Path) -> None:
    """Check that a file can be written to a folder.

    Raises:
        OSError: The file cannot be written, for instance because the disk is full.
    """
    probe = folder / _PROBE
    try:
        probe.write_bytes(bytes(_PROBE_BYTES))
    finally:
        probe.unlink(missing_ok=True)


def remove_torn_commit(checkpoint: Path) -> None:
    """Remove the last commit if it cannot be read: the next start repeats its batch, as after a crash."""
    torn = _torn_commit(checkpoint)
    if torn is not None:
        _log.warning("%s cannot be read, and is removed: its batch is repeated", torn)
        for file in _with_checksum(torn):
            file.unlink(missing_ok=True)


def require_undamaged(checkpoint: Path, known_id: str | None = None) -> None:
    """Check that the files of a checkpoint can be read that its next start needs, except those of its state.

    Args:
        known_id: The id of the checkpoint, if the plan file says it.

    Raises:
        DamagedCheckpointError: A file cannot be read; the message has the ways to continue.
    """
    _require_metadata(checkpoint, known_id)
    planned, committed = sorted(planned_batches(checkpoint)), sorted(committed_batches(checkpoint))
    for number in planned[-2:]:
        file = checkpoint / "offsets" / str(number)
        if (why := _why_torn(file, 3)) is not None:
            _refuse(
                checkpoint, file, why, *_repeat(checkpoint, number) if number == planned[-1] else ("", ())
            )
    for file in () if committed else begin_logs(checkpoint):
        if (why := _why_torn(file, 2)) is not None:
            _refuse(checkpoint, file, why)
    for number in committed[-1:]:
        file = checkpoint / "commits" / str(number)
        if (why := _why_torn(file, 2)) is None or _torn_commit(checkpoint) is not None:
            continue
        following = number + 1
        again = _is_repeatable(checkpoint, number) and following == planned[-1]
        _refuse(checkpoint, file, why, *_repeat(checkpoint, number, following) if again else ("", ()))
    _require_watermarks(checkpoint)


def find_torn_state(checkpoint: Path) -> list[Path]:
    """The files of state that do not have the size that Spark has recorded beside them."""
    torn = []
    for record in sorted((checkpoint / "state").rglob("[!.]*.crc")):
        file = record.with_suffix("")
        try:
            if file.stat().st_size == read_json(record)["mainFileSize"]:
                continue
        except FileNotFoundError:  # removed, as old files are
            continue
        except (OSError, ValueError, KeyError, TypeError):
            file = record
        torn.append(file)
    return torn


def _require_metadata(checkpoint: Path, known_id: str | None) -> None:
    file = checkpoint / _METADATA
    try:
        if file.exists():
            str(read_json(file)["id"])
    except (ValueError, KeyError, TypeError) as error:
        way = ""
        if known_id is not None:
            content = shlex.quote(json.dumps({"id": known_id}))
            way = f"if nothing else in the folder has changed, write it again: echo {content} > {file}"
        _refuse(checkpoint, file, f"it has no id ({error})", way)


def _require_watermarks(checkpoint: Path) -> None:
    file = checkpoint / WATERMARKS
    try:
        if file.exists() and not isinstance(read_json(file), dict):
            _refuse(checkpoint, file, "it is not an object")
    except ValueError as error:
        way = "let the watermarks at the sinks begin again with the next record of each partition"
        _refuse(checkpoint, file, str(error), way, [file])


def _torn_commit(checkpoint: Path) -> Path | None:
    """The last commit, if it cannot be read and its batch can be repeated.

    If another batch is planned, Spark runs that one next and needs the commit before it.
    """
    last = max(committed_batches(checkpoint), default=None)
    if last is None or last != max(planned_batches(checkpoint), default=-1):
        return None
    file = checkpoint / "commits" / str(last)
    return file if _why_torn(file, 2) is not None and _is_repeatable(checkpoint, last) else None


def _is_repeatable(checkpoint: Path, number: int) -> bool:
    """Whether the last committed batch can be repeated: its offsets, and the commit before, can be read."""
    if _why_torn(checkpoint / "offsets" / str(number), 3) is not None:
        return False
    before = max((each for each in committed_batches(checkpoint) if each < number), default=None)
    if before is None:
        return number == min(planned_batches(checkpoint))
    return _why_torn(checkpoint / "commits" / str(before), 2) is None


def _why_torn(file: Path, lines: int) -> str | None:
    """Why a file of Spark's log cannot be read; None if it can.

    Args:
        lines: The least number of lines: the version, and JSON.
    """
    try:
        found = file.read_text().splitlines()
    except FileNotFoundError:
        return "it is missing"
    except (OSError, ValueError) as error:
        return str(error)
    if not found or not re.fullmatch(r"\0?v\d+", found[0]):  # Spark's source of Kafka writes a zero first
        return "it has no version" if found else "it is empty"
    try:
        for line in found[1:]:
            if line != "-":
                json.loads(line)
    except (ValueError, RecursionError):
        return "a line is cut off, or is no JSON"
    return None if len(found) >= lines else f"it has {len(found)} lines of at least {lines}"


def _repeat(checkpoint: Path, number: int, following: int | None = None) -> tuple[str, list[Path]]:
    """How to plan a batch again, or to repeat it and plan the following one again; the files to remove."""
    planned = number if following is None else following
    files = _with_checksum(checkpoint / "offsets" / str(planned))
    if number in committed_batches(checkpoint):
        files += _with_checksum(checkpoint / "commits" / str(number))
    repeat = "" if following is None else f"repeat batch {number}, and "
    how = f"{repeat}plan batch {planned} again (what it has written is written again, maybe in other batches)"
    return how, files


def _with_checksum(file: Path) -> list[Path]:
    return [file, file.with_name(f".{file.name}.crc")]


def _refuse(checkpoint: Path, file: Path, why: str, way: str = "", remove: Iterable[Path] = ()) -> NoReturn:
    """Refuse a checkpoint; ``way`` is a way to continue, and ``remove`` the files to remove for it."""
    found = [shlex.quote(str(each)) for each in remove if each.exists()]
    steps = [
        "bring the file back from a copy of the checkpoint",
        *([f"{way}: rm {' '.join(found)}" if found else way] if way else []),
        f"start anew: {start_anew([checkpoint])}",
    ]
    msg = (
        f"checkpoint {checkpoint} is damaged: {file} cannot be read: {why}: where the query continues is "
        f"unknown, so it is not started; {', or '.join(steps)}"
    )
    raise DamagedCheckpointError(msg)
